# One image for the command, the scheduler and the workers: their versions must be equal. The root may be read-only;
# what is compiled is kept in /cache, which should be a volume, and the site is a volume that all of them see.
FROM python:3.11-slim
COPY . /src
RUN /src/deploy/install /opt/ammrank python3 && rm -rf /src \
    && useradd --uid 10001 --no-create-home ammrank \
    && mkdir /site /cache && chown ammrank: /site /cache
USER 10001
ENV PATH=/opt/ammrank/bin:$PATH NUMBA_CACHE_DIR=/cache PYTHONUNBUFFERED=1
VOLUME ["/site", "/cache"]
ENTRYPOINT ["ammrank"]
CMD ["--help"]
