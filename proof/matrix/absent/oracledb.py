"""In the place of a driver that cannot be had for a Python: what is named of it at import is a
class; nothing of it works."""


def __getattr__(name: str) -> type[Exception]:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Exception,), {})
