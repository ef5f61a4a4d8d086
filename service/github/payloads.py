"""What is read of GitHub's webhook payloads, and of nothing else there.

What is not named here is never looked at, and never stored. Fields as they are documented at
https://docs.github.com/webhooks/webhook-events-and-payloads
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from runner.errors import InputError

NO_COMMIT = "0" * 40
"""What a push names where there is no commit: before a branch, or after it."""
_INT4 = 2**31 - 1  # of PostgreSQL's integer
# PostgreSQL's text holds no NUL.
Text = Annotated[str, AfterValidator(lambda text: text.replace("\x00", ""))]
Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class _Payload(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Repository(_Payload):
    """A repository. full_name: `owner/name`, in whatever case someone once wrote it."""

    full_name: Text = Field(min_length=1)


class User(_Payload):
    """Someone, or something. type: `User`, `Bot` or `Organization`."""

    login: Text
    type: str = ""

    @property
    def is_bot(self) -> bool:
        """True for an app."""
        return self.type == "Bot"


class Author(_Payload):
    """Who a commit says its author is: anything at all."""

    name: Text = ""


class HeadCommit(_Payload):
    """The commit that a push left a ref at; of an annotated tag, the commit that it names."""

    id: Sha
    message: Text = ""
    timestamp: str = ""
    author: Author = Author()

    @property
    def title(self) -> str:
        """First line of the message."""
        return self.message.partition("\n")[0].strip()


class Ping(_Payload):
    """`ping`: the webhook was set up."""

    zen: Text = ""
    repository: Repository | None = None


class Push(_Payload):
    """`push`: a branch or a tag moved, came, or went.

    ref: whole, such as `refs/heads/main`. after: the new commit, of an annotated tag the tag
    itself; NO_COMMIT where the ref is gone.
    """

    ref: Text
    before: Sha
    after: Sha
    deleted: bool = False
    head_commit: HeadCommit | None = None
    sender: User | None = None
    repository: Repository


class Side(_Payload):
    """One side of a pull request. repo: None where it was deleted meanwhile."""

    ref: Text
    sha: Sha
    repo: Repository | None = None

    @property
    def repository(self) -> str:
        """`owner/name`, empty where there is none any more."""
        return self.repo.full_name if self.repo else ""


class PullRequest(_Payload):
    """A pull request, as it was when the event happened."""

    number: int = Field(gt=0, le=_INT4)
    title: Text = ""
    state: str
    draft: bool = False
    user: User | None = None
    updated_at: AwareDatetime
    head: Side
    base: Side

    @property
    def fork(self) -> bool:
        """True where whoever pushed the head need not have write permission.

        A head whose repository is gone counts as a fork's.
        """
        head, base = self.head.repository, self.base.repository
        return not head or head.lower() != base.lower()


class PullRequestEvent(_Payload):
    """`pull_request`."""

    action: str
    pull_request: PullRequest
    sender: User | None = None
    repository: Repository


class Reference(_Payload):
    """Something whose being there is all that counts."""


class Issue(_Payload):
    """An issue; one that has `pull_request` is a pull request's conversation."""

    number: int = Field(gt=0, le=_INT4)
    pull_request: Reference | None = None


class Comment(_Payload):
    """A comment. body: looked through for commands, and not stored."""

    id: int
    body: Text | None = Field(default=None, exclude=True)
    user: User | None = None
    created_at: AwareDatetime


class IssueCommentEvent(_Payload):
    """`issue_comment`."""

    action: str
    issue: Issue
    comment: Comment
    sender: User | None = None
    repository: Repository


class Other(_Payload):
    """Any other event."""

    action: Text | None = None
    repository: Repository | None = None


Payload = Ping | Push | PullRequestEvent | IssueCommentEvent | Other
_MODELS: dict[str, type[Payload]] = {
    "ping": Ping,
    "push": Push,
    "pull_request": PullRequestEvent,
    "issue_comment": IssueCommentEvent,
}


def parse(event: str, body: bytes | bytearray) -> Payload:
    """What is used of a delivery's body. Raises InputError for what is no such payload."""
    try:
        return _MODELS.get(event, Other).model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        raise InputError(
            f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}"
        )
    where = ".".join(map(str, first["loc"])) or "the body"
    raise InputError(f"{event} delivery, {where}: {first['msg'][:1].lower()}{first['msg'][1:]}")


def as_stored(payload: Payload) -> dict[str, Any]:
    """What is kept of a delivery."""
    return payload.model_dump(mode="json")
