"""The long trials use NVIDIA's own control daemons, as the contract tests do."""

from tests.contract.conftest import binary, daemon, version

__all__ = ["binary", "daemon", "version"]
