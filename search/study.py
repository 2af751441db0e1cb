"""Optuna studies: where they are kept, whether they fit the search, how their failures read.

A storage is a database (``postgresql://...``, ``sqlite:///...``) or a journal: a file that
processes append to. A study states what it was made for, and no other search may join it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

from parallelsim.search.searcher import Request
from parallelsim.search.space import SearchSpace

from parallelsim.errors import OutputError, PlanError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study

SAMPLERS = ("tpe", "gp")
DEFAULT_STORAGE = "sqlite:///parallelsim-studies.db"
"""Of a named study whose storage is not."""
MADE_FOR, FINGERPRINT = "made_for", "fingerprint"
"""Attributes of a study."""
ENCODING_VERSION = 2
"""Raised when the same plan gets other coordinates: older studies are then refused."""
CONNECT_TIMEOUT_S = 10
CREATION_ATTEMPTS, CREATION_WAIT_S = 4, 0.5


def sampler_of(name: str, seed: int, num_startup: int) -> BaseSampler:
    """The sampler; nothing is pruned, since a plan is evaluated at once.

    Raises:
        PlanError: unknown, or its libraries are missing.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if name == "tpe":
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=num_startup, multivariate=True, constant_liar=True
        )
    if name != "gp":
        raise PlanError(f"sampler must be one of {', '.join(SAMPLERS)}, got {name[:60]!r}")
    missing = [module for module in ("torch", "scipy") if find_spec(module) is None]
    if missing:
        raise PlanError(
            f"sampler gp needs {' and '.join(missing)}: pip install 'parallelsim[gp]', "
            "or use sampler tpe"
        )
    return optuna.samplers.GPSampler(
        seed=seed, n_startup_trials=num_startup, warn_independent_sampling=False
    )


def made_for(space: SearchSpace, request: Request, num_objectives: int) -> tuple[str, str]:
    """(what a study of this search is made for, in words; a hash of all that its trials depend
    on).
    """
    cluster = space.cluster
    words = (
        f"{space.model.name} on {cluster.num_gpus} x {cluster.name}, batch "
        f"{space.global_batch_size} x {space.model.seq_length}, {space.precision}, "
        f"{space.framework.name}"
    )
    parts = (
        ENCODING_VERSION,
        *(space.model, space.cluster, space.framework, space.global_batch_size),
        *(space.precision, sorted(space.fixed.items())),
        sorted((name, tuple(values)) for name, values in space.limits.items()),
        *(space.all_schedules, request.memory_limit, num_objectives),
    )
    return words, hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def open_study(
    storage: str | None,
    name: str | None,
    space: SearchSpace,
    request: Request,
    sampler: BaseSampler,
    num_objectives: int,
) -> Study:
    """The study to work on: a new one, or one of an equal search that goes on.

    Raises:
        PlanError: it was made for another search, or the storage is of no known kind.
        OutputError: the storage cannot be used.
    """
    import optuna

    words, fingerprint = made_for(space, request, num_objectives)
    if storage is None and name is not None:
        storage = DEFAULT_STORAGE
    name = name or f"{space.model.name}-{space.cluster.num_gpus}-{fingerprint[:8]}"
    with storage_errors(storage):
        study = optuna.create_study(
            storage=_storage(storage) if storage else None,
            study_name=name,
            sampler=sampler,
            directions=["minimize"] * num_objectives,
            load_if_exists=True,
        )
        known = study.user_attrs
        if FINGERPRINT not in known and not study.get_trials(deepcopy=False):
            study.set_user_attr(MADE_FOR, words)
            study.set_user_attr(FINGERPRINT, fingerprint)
            known = {MADE_FOR: words, FINGERPRINT: fingerprint}
    if known.get(FINGERPRINT) != fingerprint:
        other = known.get(MADE_FOR, "something else")
        why = "with other options or versions of the inputs" if other == words else f"not {words}"
        raise PlanError(
            f"study {name!r} in {shown(storage)} was made for {other}, {why}; "
            "choose another --study"
        )
    return study


def _storage(url: str) -> BaseStorage:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from parallelsim.search.journal import journal_storage
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    if "://" not in url:
        return journal_storage(url)
    scheme, rest = url.split("://", 1)
    if not scheme.startswith(("sqlite", "postgres")) or rest in ("", "/", "/:memory:"):
        raise PlanError(
            f"storage {shown(url)}: expected sqlite:///FILE, postgresql://USER@HOST/DATABASE, or "
            "the path of a journal file"
        )
    options: dict[str, Any] = {}
    if scheme in ("postgresql", "postgres"):
        scheme = "postgresql+psycopg"
    if scheme.startswith("postgresql"):
        options = {"connect_timeout": CONNECT_TIMEOUT_S}
    elif scheme.startswith("sqlite"):
        options = {"timeout": CONNECT_TIMEOUT_S}
    url = f"{scheme}://{rest}"
    left = CREATION_ATTEMPTS
    while True:
        left -= 1
        try:
            return RDBStorage(url, engine_kwargs={"connect_args": options, "pool_pre_ping": True})
        except (StorageInternalError, IntegrityError, ProgrammingError):
            # Another process may be creating the tables of a new database in this moment.
            if not left:
                raise
            time.sleep(CREATION_WAIT_S)


def shown(storage: str | None) -> str:
    """The storage without its password."""
    if storage is None or "://" not in storage:
        return storage or "memory"
    scheme, rest = storage.split("://", 1)
    place = rest.rsplit("@", 1)
    user = place[0].split(":", 1)[0] + "@" if len(place) == 2 else ""
    return f"{scheme}://{user}{place[-1]}"


@contextmanager
def storage_errors(storage: str | None) -> Iterator[None]:
    """Failures of the storage become one line.

    Raises:
        OutputError: the storage is down, locked, damaged, or its driver is missing.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except ModuleNotFoundError as error:
        extra = "parallelsim[postgresql]" if "psycopg" in str(error) else str(error.name)
        raise OutputError(
            f"storage {shown(storage)} needs {error.name}: pip install '{extra}'"
        ) from None
    except ImportError as error:
        raise OutputError(f"storage {shown(storage)}: its driver is missing: {error}") from None
    except (StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else None
        first = str(getattr(cause or error, "orig", None) or cause or error).strip()
        raise OutputError(
            f"storage {shown(storage)} cannot be used: {first.splitlines()[0][:200]}"
        ) from None
    except JSONDecodeError as error:
        raise OutputError(
            f"storage {shown(storage)} cannot be used: a line in it is no record ({error.msg}); "
            "remove that line, or choose another file"
        ) from None
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if storage is None:
            raise
        raise OutputError(
            f"storage {shown(storage)} cannot be used: {str(error).splitlines()[0][:200]}"
        ) from None
