"""Who may do what: tokens as bearers of scopes. Reading is open unless the settings say private."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from service import tokens
from service.api.errors import refused
from service.tokens import Scope


@dataclass(frozen=True)
class Caller:
    """Whoever holds a token."""

    token_id: int
    name: str
    scopes: frozenset[str]

    def may(self, scope: Scope) -> bool:
        """Whether the token has the scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token of `racewatch token create`; its scopes say what it may do.",
)
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="racewatch"'}
_READING_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="racewatch", Basic realm="racewatch"'}


def reader(request: Request) -> None:
    """Lets reading requests through; where the service is private, only those with a token.

    A browser may send the token as the password of HTTP Basic, for reading and nothing else: it
    does so by itself, on requests that another site made it send too.
    """
    plain = _bearer(request)
    if plain is None and request.app.state.settings.private:
        plain = _basic(request)
        if plain is None:
            raise refused(401, "this service is private: send a token", _READING_CHALLENGE)
    if plain is not None and _verified(request, plain) is None:
        raise refused(401, "the token is unknown or revoked", _READING_CHALLENGE)


def needs(scope: Scope) -> Callable[..., Caller]:
    """A dependency that takes only requests whose token has the scope."""

    def caller(request: Request, _: Annotated[object, Depends(BEARER)]) -> Caller:
        plain = _bearer(request)
        if plain is None:
            raise refused(
                401, f"this needs a token with the scope {scope}: Authorization: Bearer ...",
                _CHALLENGE,
            )  # fmt: skip
        found = _verified(request, plain)
        if found is None:
            raise refused(401, "the token is unknown or revoked", _CHALLENGE)
        if not found.may(scope):
            has = ", ".join(sorted(found.scopes)) or "none"
            raise refused(
                403, f"token {found.name} lacks the scope {scope}; it has {has}",
                {"WWW-Authenticate": f'Bearer realm="racewatch", error="insufficient_scope", '
                                     f'scope="{scope}"'},
            )  # fmt: skip
        return found

    return caller


def _verified(request: Request, plain: str) -> Caller | None:
    with request.app.state.database.session() as session:
        token = tokens.verify(session, plain)
        if token is None or token.id is None:
            return None
        return Caller(token.id, token.name, frozenset(token.scopes))


def _bearer(request: Request) -> str | None:
    return _credentials(request, "bearer")


def _basic(request: Request) -> str | None:
    given = _credentials(request, "basic")
    try:
        return None if given is None else base64.b64decode(given).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


def _credentials(request: Request, wanted: str) -> str | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == wanted else None


MayRun = Annotated[Caller, Depends(needs(Scope.RUN))]
MayApprove = Annotated[Caller, Depends(needs(Scope.APPROVE))]
