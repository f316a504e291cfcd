"""Drive a headless Chromium over its DevTools protocol; nothing but tornado is needed."""

import asyncio
import base64
import json
import re
import shutil
import subprocess
import time

from tornado.websocket import websocket_connect


class Browser:
    """One page of a headless Chromium, its console messages and its network requests."""

    def __init__(self, profile, width=1500, height=1180):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program, "Chromium must be installed for this test"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        options += [f"--user-data-dir={profile}", f"--window-size={width},{height}", "--remote-debugging-port=0"]
        self.loop = asyncio.new_event_loop()
        self.process = subprocess.Popen([program, *options, "about:blank"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"ws://127\.0\.0\.1:(\d+)/", line)
            if found:
                break
        self.messages, self.requests, self.answers, self.number = [], [], {}, 0
        self.socket = self.loop.run_until_complete(self._connect(int(found.group(1))))
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    async def _connect(self, port):
        from tornado.httpclient import AsyncHTTPClient

        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
        page = next(target for target in json.loads(answer.body) if target["type"] == "page")
        return await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=2**28)

    def call(self, method, **parameters):
        """Send one command and return its result."""
        self.number += 1
        number = self.number
        return self.loop.run_until_complete(self._call(number, method, parameters))

    async def _call(self, number, method, parameters):
        await self.socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(await asyncio.wait_for(self.socket.read_message(), 60))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message):
        parameters = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.messages.append(("exception", json.dumps(parameters["exceptionDetails"])[:500]))
        elif message["method"] == "Runtime.consoleAPICalled":
            text = " ".join(str(part.get("value", part.get("description", ""))) for part in parameters["args"])
            self.messages.append((parameters["type"], text))
        elif message["method"] == "Log.entryAdded":
            entry = parameters["entry"]
            self.messages.append((entry["level"], f"{entry['text']} {entry.get('url', '')}"))
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, address):
        """Load a page."""
        self.call("Page.navigate", url=address)

    def show(self, address, width, dark=False):
        """Load a page into a window of some width; what it asks for and complains about is counted from here."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.open("about:blank")
        self.wait_for("location.href == 'about:blank'")
        self.messages.clear()
        self.requests.clear()
        self.open(address)
        self.wait_for(f"location.href == '{address}' && document.readyState == 'complete'")

    def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression, seconds=60):
        """Wait until an expression is true and return its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"not true within {seconds} s: {expression}")

    def errors(self):
        """Return what the page complained about."""
        return [message for message in self.messages if message[0] in ("error", "exception", "assert")]

    def screenshot(self, path):
        """Write what is seen as a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        """End the browser."""
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=20)
        self.process.stderr.close()
        self.loop.close()
