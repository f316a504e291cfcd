"""Data at rest: schemas, zarr and parquet layouts, manifests, checksums, atomic publish."""
