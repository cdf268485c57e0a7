"""Algorithms, mechanisms and samplers from outside the package: runs are `unreviewed` until audits have passed.

An algorithm needs the leak test (`privrl audit leaks`). A mechanism or a sampler needs it, too, and the canary
attack (`privrl audit epsilon`), since the leak test gives both of its runs the same noise. No audit sees what a
draw saves: a sampler that may claim so, or that uses each user once, stays `unreviewed`. Nor does one see in
how many rounds a user is: kinds of users stay so, too. A passed audit writes a record, which training reads
from `FOLDER`, below the working directory. A record is valid for one configuration (any seed; the leak test's
for any z, too), one version of the sources, and one version of this package.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privrl_bench.composition.identity import digest
from privrl_bench.config.schema import RunConfig
from privrl_bench.privacy.guarantee import UNREVIEWED
from privrl_bench.privacy.rules import not_auditable, rules
from privrl_bench.privacy.sampling.sampler import Sampler
from privrl_bench.training.crash import version
from privrl_bench.training.folder import write_json
from privrl_bench.training.provenance import PACKAGE, outside, sources
from privrl_bench.users import kind_of

FOLDER = Path("outputs/reviews")
LEAKS, EPSILON = "leaks", "epsilon"  # commands of `privrl audit`
UNSEEN = "unseen"  # no command: nothing records it
_ANY = {LEAKS: ("seed", "privacy.z")}  # keys that a record is not about, beside the seed


def audits(config: RunConfig) -> tuple[str, ...]:
    """Return the audits that a configuration has to pass: commands of `privrl audit`, or `UNSEEN`."""
    theirs = outside(config)
    found = (LEAKS,) if theirs else ()
    if theirs & {"mechanism", "sampler"} and not not_auditable(config.privacy):
        found = (*found, EPSILON)
    return (*found, UNSEEN) if _unseen(config) else found


def _claims(config: RunConfig) -> bool:
    """Whether a sampler may count less than a user who is in every round for certain."""
    kind = rules(config.privacy).sampler
    own = {name for base in kind.__mro__ if base is not Sampler for name in vars(base)}
    return bool(kind.random or not kind.every_round or own & {"wrap", "relation", "record"})


def subject(config: RunConfig, audit: str = LEAKS) -> dict[str, str] | None:
    """Return what a record is valid for, or None when a source cannot be read.

    Args:
        config: of the run, as it was composed. The seed has no effect.
        audit: the leak test, for which z has no effect either, or the attack.
    """
    source = sources(config)
    if None in source.values():
        return None
    return {
        "audit": audit,
        "algorithm": config.algo.name,
        "configuration": digest(config, _ANY.get(audit, ("seed",))),
        "source": json.dumps(source),
        "version": version(),
    }


def find(config: RunConfig, audit: str = LEAKS) -> dict[str, Any] | None:
    """Return the record of a passed audit of this configuration and version, or None."""
    about = subject(config, audit)
    if about is None:
        return None
    try:
        record = json.loads(_path(about).read_text())
    except (OSError, ValueError):
        return None
    passed = isinstance(record, dict) and record.get("ok") is True
    return record if passed and about.items() <= record.items() else None


def records(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the records that exist of the audits that the configuration has to pass, by audit."""
    found = {audit: find(config, audit) for audit in audits(config)}
    return {audit: record for audit, record in found.items() if record is not None}


def write(config: RunConfig, verdict: str, lines: list[str], audit: str = LEAKS) -> Path | None:
    """Record that an audit has passed.

    Args:
        config: of the run, as it was composed, not with the sizes of the test.
        verdict: of the audit.
        lines: the report.
        audit: which one.

    Returns:
        The file, or None when a source cannot be read.
    """
    about = subject(config, audit)
    if about is None:
        return None
    path = _path(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, about | {"ok": True, "verdict": verdict, "date": date, "report": lines})
    return path


def effect(config: RunConfig, status: str) -> str:
    """Return what a passed audit has changed, in words. `status`: of the guarantee before it."""
    if missing := _missing(config):
        if UNSEEN in missing:
            return f"passed; runs stay unreviewed: {_unseen(config)}"
        return f"passed; runs are unreviewed until {_commands(missing)} with the same words has passed, too"
    if status in (UNREVIEWED, "formal"):
        return "passed; runs with this source and configuration are formal from now on"
    return f"passed; runs with this source and configuration stay {status}, for the reason above"


def _unseen(config: RunConfig) -> str:
    """What no audit sees of the run; empty: nothing."""
    theirs = outside(config)
    if "users" in theirs:
        return f"no audit sees in how many rounds one of the users {kind_of(config).name!r} is"
    if "sampler" in theirs and _claims(config):
        return "no audit sees what the sampler's draw saves, because canaries are in their rounds for certain"
    if "mechanism" in theirs and (why := not_auditable(config.privacy)):
        return f"no audit sees the mechanism's noise: {why}"
    return ""


def _commands(missing: list[str]) -> str:
    """The commands of audits, in words; empty: there is none."""
    return " and ".join(f"`privrl audit {audit}`" for audit in missing if audit != UNSEEN)


def _missing(config: RunConfig) -> list[str]:
    """The audits that the configuration has to pass and has not."""
    return [audit for audit in audits(config) if find(config, audit) is None]


def note(config: RunConfig) -> dict[str, str]:
    """The note that makes a guarantee `unreviewed`, or nothing."""
    missing = _missing(config)
    if not missing:
        return {}
    words = {
        "algorithm": f"algo={config.algo.name}",
        "mechanism": f"privacy.mechanism={rules(config.privacy).mechanism.name}",
        "sampler": f"privacy.sampling={config.privacy.sampling}",
        "users": f"users {kind_of(config).name!r}",
    }
    theirs = outside(config)
    what = [text for name, text in words.items() if name in theirs]
    text = f"{' and '.join(what)} {'are' if len(what) > 1 else 'is'} from outside {PACKAGE}"
    if commands := _commands(missing):
        text += ", and no passed audit of this configuration and version is in "
        text += f"{FOLDER}: run {commands} with the same words"
    if UNSEEN in missing:
        text += f"; {_unseen(config)}"
    return {UNREVIEWED: text}


def _path(about: dict[str, str]) -> Path:
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    return FOLDER / f"{name}.json"
