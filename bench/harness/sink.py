"""python3 -m harness.sink CERTIFICATE KEY: a TLS server that drops everything.

The control group of `bench/run attacks`: an attacker has the same work against it as against
phubd. Prints its port.
"""

import asyncio
import contextlib
import ssl
import sys


async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 20):
            pass
    writer.close()


async def serve(certificate: str, key: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(drop, "127.0.0.1", 0, ssl=context)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
