"""The one exception that the native module raises."""


class Error(Exception):
    """The world said no.

    `code` is a name of docs/errors.md ("bad_config", "layout_mismatch", ...).
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
