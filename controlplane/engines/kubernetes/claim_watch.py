"""Which claims of projects are there, as a watch last saw them: what is deleted by hand is noticed within a second."""

from __future__ import annotations

import threading

from controlplane.engines.kubernetes import names
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.names import key_of
from controlplane.kubernetes_api.reflector import Reflector
from datasets.storage.claims import CLAIM_DELETED, trouble_of

# A watch that is alive says something at least once a minute.
SILENCE_SECONDS = 150.0


class ClaimWatch:
    """Started by the first question, since a process that asks none needs no watch. Thread-safe."""

    def __init__(self, client: Client) -> None:
        # Also those of other installations: their namespaces are never asked about.
        query = {"labelSelector": names.PROJECT}
        path = names.list_path("PersistentVolumeClaim")
        self._claims = Reflector(client, path, query=query, keep=trouble_of)
        self._starting = threading.Lock()
        self._is_started = False

    def trouble(self, namespace: str, claim: str) -> str | None:
        """Return the problem of a claim, a code of storage.claims; "" for none, None while that is not known."""
        with self._starting:
            if not self._is_started:
                self._is_started = True
                self._claims.start()
        if not self._claims.wait_synced(0) or self._claims.seconds_since_contact() > SILENCE_SECONDS:
            return None
        found: str | None = self._claims.get(key_of(namespace, claim))
        return CLAIM_DELETED if found is None else found

    def close(self) -> None:
        if self._is_started:
            self._claims.close()
