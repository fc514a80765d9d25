"""Where the queue server is: one server, the master that Sentinels name, or the node of a cluster that has the keys.

All keys of a prefix share its hash tag, so in a cluster they lie in one slot, on one node: a plain connection to the node
that owns it does all that one to a single server does. Who is to be connected to is asked for anew before every
connection, and one that has become a replica, or lost the slot, is left by its first reply that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, cast
from urllib.parse import parse_qsl, unquote

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError, ReadOnlyError, RedisError, ResponseError

from .errors import ShoalError

# A server that takes connections and says nothing is away.
_ANSWER_WITHIN_S: Final = 10.0
_CONNECT_WITHIN_S: Final = 5.0
# A Sentinel or node that does not answer in this time is passed over.
_TOLD_WITHIN_S: Final = 2.0
# Calls of many jobs travel together, so a few are enough for thousands.
_MOST_CONNECTIONS: Final = 16
_MANY: Final = re.compile(r"(rediss?)\+(sentinel|cluster)://(?:([^/?]*)@)?([^@/?]+)(?:/([^?]*))?(?:\?(.*))?")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\[\]:]+)(?::(\d{1,5}))?")
# As redis-py has them in the URLs of one server.
_TLS_PARAMETERS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")

Node = tuple[str, int]
Find = Callable[[], Awaitable[Node]]


def open_redis(url: str, prefix: str) -> Redis:
    """Connects when it is first asked; whoever asks while all connections are busy waits for one. ``prefix``: the hash
    tag whose slot decides on the node of a cluster. Raises CONFIG_INVALID for an address that cannot be."""
    terms: dict[str, Any] = {
        "max_connections": _MOST_CONNECTIONS,
        "timeout": None,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": _ANSWER_WITHIN_S,
        "socket_connect_timeout": _CONNECT_WITHIN_S,
        "client_name": "shoal-python",
    }
    try:
        if re.match(r"rediss?\+", url) is not None:
            return Redis.from_pool(BlockingConnectionPool(**terms, **_many(url, prefix)))
        return Redis.from_pool(BlockingConnectionPool.from_url(url, **terms))
    except ValueError as error:
        raise ShoalError("CONFIG_INVALID", f"{redacted(url)!r} is not the URL of a queue server: {error}") from None


def redacted(url: str) -> str:
    return re.sub(r"//[^/]*@", "//***@", url)


def _many(url: str, prefix: str) -> dict[str, Any]:
    """How connections to one of several servers are made. Raises ValueError."""
    parts = _MANY.fullmatch(url)
    if parts is None:
        raise ValueError(
            "use redis+sentinel://host:port,host:port/master or redis+cluster://host:port,host:port, or redis://, "
            "rediss:// or unix:// for one server"
        )
    scheme, kind, credentials, hosts, path, query = parts.groups(default="")
    is_tls, is_sentinel = scheme == "rediss", kind == "sentinel"
    nodes = [_node(host, 26_379 if is_sentinel else 6_379) for host in hosts.split(",")]
    known = [*(("db", "sentinelUsername", "sentinelPassword") if is_sentinel else ()), *(_TLS_PARAMETERS if is_tls else ())]
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name in given:
        if name not in known:
            raise ValueError(f'{name[:32]!r} is no parameter here; there are {", ".join(known) or "none"}')
    tls: dict[str, Any] = {name: value for name, value in given.items() if name in _TLS_PARAMETERS}
    if "ssl_check_hostname" in tls:
        tls["ssl_check_hostname"] = tls["ssl_check_hostname"].lower() in ("true", "yes", "1")
    own = _credentials(credentials)
    made = {**own, **tls, "connection_class": _FoundTls if is_tls else _Found}
    asking = {**tls, "ssl": is_tls, "socket_timeout": _TOLD_WITHIN_S, "socket_connect_timeout": _TOLD_WITHIN_S}
    if not is_sentinel:
        if path not in ("", "0"):
            raise ValueError("a cluster has database 0 only; leave it out")
        return {**made, "find": _Owner(nodes, prefix, {**asking, **own}).find}
    if path == "":
        raise ValueError("the name of the master is missing: redis+sentinel://host:port,host:port/mymaster")
    database = given.get("db", "0")
    if not database.isdigit():
        raise ValueError("the database must be a number")
    theirs = {"username": given.get("sentinelUsername"), "password": given.get("sentinelPassword")}
    find = _Master(nodes, unquote(path), {**asking, **theirs}).find
    return {**made, "db": int(database), "find": find}


def _node(text: str, default_port: int) -> Node:
    found = _HOST.fullmatch(text.strip())
    if found is None:
        raise ValueError('each of its hosts is host or host:port; write "/" in a password as %2F and "?" as %3F')
    return found[1].strip("[]"), int(found[2] or default_port)


def _credentials(text: str) -> dict[str, str]:
    username, _, password = text.partition(":")
    given = {"username": unquote(username), "password": unquote(password)}
    return {name: value for name, value in given.items() if value != ""}


class _Asked:
    """Whoever of several servers answers first."""

    def __init__(self, nodes: Sequence[Node], terms: Mapping[str, Any]) -> None:
        self._nodes = tuple(nodes)
        self._terms = terms

    async def _each(self, ask: Callable[[Redis, Node], Awaitable[Node | None]]) -> Node | None:
        for node in self._nodes:
            redis = Redis(host=node[0], port=node[1], retry=Retry(NoBackoff(), 0), **self._terms)
            try:
                found = await ask(redis, node)
            except (RedisError, OSError, asyncio.TimeoutError):
                continue
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await redis.aclose()
            if found is not None:
                self._nodes = (node, *(other for other in self._nodes if other != node))
                return found
        return None


class _Master(_Asked):
    """The master that Sentinels name."""

    def __init__(self, sentinels: Sequence[Node], name: str, terms: Mapping[str, Any]) -> None:
        super().__init__(sentinels, terms)
        self._name = name

    async def find(self) -> Node:
        async def ask(redis: Redis, _: Node) -> Node | None:
            told = await redis.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self._name)  # type: ignore[no-untyped-call]
            return None if told is None else (_text(told[0]), int(told[1]))

        found = await self._each(ask)
        if found is None:
            raise RedisConnectionError(
                f"none of {len(self._nodes)} Sentinels names a master {self._name!r}, or none answers"
            )
        return found


class _Owner(_Asked):
    """The node of a cluster that has the slot of a hash tag."""

    def __init__(self, nodes: Sequence[Node], tag: str, terms: Mapping[str, Any]) -> None:
        super().__init__(nodes, terms)
        self._slot = key_slot(tag.encode())

    async def find(self) -> Node:
        async def ask(redis: Redis, node: Node) -> Node | None:
            for first, last, owner, *_ in await redis.execute_command("CLUSTER", "SLOTS"):  # type: ignore[no-untyped-call]
                if first <= self._slot <= last:
                    # a node that does not know its own address says nothing, or "?"
                    host = _text(owner[0]) if owner[0] else ""
                    return (node[0] if host in ("", "?") else host, int(owner[1]))
            return None

        found = await self._each(ask)
        if found is None:
            raise RedisConnectionError(f"none of {len(self._nodes)} nodes of the cluster says who has slot {self._slot}")
        return found


class _Found(Connection):
    """A connection to whom ``find`` names, which has to take writes."""

    def __init__(self, *, find: Find, **terms: Any) -> None:
        super().__init__(**terms)
        self._find = find

    async def _connect(self) -> None:
        self.host, self.port = await self._find()
        await super()._connect()  # type: ignore[no-untyped-call]

    async def on_connect(self) -> None:
        await super().on_connect()
        await self.send_command("INFO", "replication")
        try:
            told = _text(await self.read_response(disable_decoding=True))
        except ResponseError:
            return  # a user that may not ask hears it by the first write
        if "role:master" not in told:
            await self._leave(f"{self.host}:{self.port} is no master any more")

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except ReadOnlyError:
            await self._leave("the server has become a replica")
        except ResponseError as error:
            if not _has_moved(error):
                raise
            await self._leave("the keys have moved to another node")

    async def _leave(self, why: str) -> NoReturn:
        await self.disconnect()
        raise RedisConnectionError(why)


class _FoundTls(_Found, SSLConnection):
    pass


def _has_moved(error: ResponseError) -> bool:
    return type(error).__name__ == "MovedError" or str(error).startswith("MOVED ")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(cast(object, value))
