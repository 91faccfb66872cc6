"""The connector of vLLM: `kv_connector: KvPushConnector`."""

import contextlib


def register() -> None:
    """vLLM's plugin hook; called in every process of a server, possibly more than once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with contextlib.suppress(ValueError):  # it was registered before
        KVConnectorFactory.register_connector("KvPushConnector", "kvpush.vllm.connector", "KvPushConnector")
