"""Registers phub with torch.distributed. torch calls these when it is imported (entry points).

A module of its own: it must load neither torch nor phub, because torch is still being imported, and
programs that do not use phub must not pay for it. Errors must not make `import torch` fail.
"""


def autoload() -> None:
    """Group torch.backends, torch 2.5 and newer: called at the end of `import torch`."""
    try:
        register()
    except Exception:
        pass


def register() -> None:
    """Group torch.distributed.backends, torch 2.14 and newer: called when "phub" is asked for."""
    import inspect
    import typing

    import torch.distributed as dist

    def create(given: object, pg_options: object = None) -> typing.Any:
        from phub.torch._create import create as implementation

        return implementation(given, pg_options)

    def rendezvous(url: str, **arguments: typing.Any) -> typing.Iterator[typing.Any]:
        from phub.torch._rendezvous import rendezvous as implementation

        return implementation(url, **arguments)

    if not dist.is_available():
        return
    if not hasattr(dist.Backend, "PHUB"):
        accepts = inspect.signature(dist.Backend.register_backend).parameters
        devices = {"devices": ["cpu", "cuda"]} if "devices" in accepts else {}
        dist.Backend.register_backend("phub", create, extended_api=True, **devices)
    try:
        dist.register_rendezvous_handler("phub", rendezvous)
    except RuntimeError:  # registered already
        pass
