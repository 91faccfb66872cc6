from kvpush.types import Command, Plane, Scheduled

class Agent:
    """Runs the transfers of one rank on a thread of its own, which never takes the GIL."""

    @staticmethod
    def open(
        *,
        engine_id: str,
        host: str,
        control_port: int,
        transport: str,
        planes: list[Plane],
        regions: list[tuple[int, int]],
        rank: int = 0,
        rank_count: int = 1,
        secret_file: str = "",
        allow_unauthenticated: bool = False,
    ) -> Agent:
        """Starts an agent that listens on host:control_port (0: any port).

        Without a `secret_file` (docs/authentication.md) it listens on loopback alone, unless `allow_unauthenticated`.

        `regions` are (address, bytes) of memory that holds every plane and stays mapped until stop() has returned.
        Raises Error: bad_config, layout_mismatch, out_of_region, unavailable.
        """

    @property
    def document(self) -> str:
        """This rank's part of the engine's directory document, JSON."""

    def submit(self, commands: list[Command]) -> bool:
        """Hands over all of `commands`, in order; False, and none of them, when the agent is that far behind.

        Raises Error "stopped", or TypeError and ValueError for values that are no commands.
        """

    def take_events(self) -> list[tuple[str, str, str | None, int, float] | tuple[str, str, str, int]]:
        """The events so far, as tuples of the fields of `types.Event` or `types.AwaitEnded`."""

    @property
    def event_fd(self) -> int:
        """Readable while an event waits."""

    def wait(self, limit_s: float) -> bool:
        """Waits without the GIL until an event is there, at most `limit_s` seconds; True if one is."""

    def stop(self, limit_s: float) -> bool:
        """Ends what runs within `limit_s` seconds, fails the rest, ends the thread; False if something was failed."""

class DirectoryServer:
    """The engine's HTTP address (docs/directory.md), on a thread of its own."""

    @staticmethod
    def open(host: str, port: int) -> DirectoryServer:
        """Listens when it returns; port 0: any. Raises Error "bad_config" if the address cannot be bound."""

    @property
    def port(self) -> int: ...
    def set_ranks(self, documents: list[str]) -> None:
        """The documents of all ranks. Raises Error "bad_message" if they are not the ranks of one engine."""

    def add(self, scheduled: Scheduled) -> None:
        """Keeps it for /kvpush/v1/transfers. Raises TypeError and ValueError for what is none."""

    def stop(self) -> None:
        """Closes every connection and ends the thread."""

version: str
