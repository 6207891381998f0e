"""Which groups of trajectories are under way, ready or dropped; asked and told from any thread."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from agentverl.errors import BadInputError, TrainingStoppedError
from agentverl.rollout.episode import Episode, EpisodeResult, Group
from agentverl.rollout.failures import FailureLedger, ValidationLedger
from agentverl.rollout.groups import OpenGroup
from agentverl.rollout.rollouts_settings import RolloutsSettings


class GroupBook:
    """Groups from when they are submitted until they are handed out, those of training and of validation apart."""

    def __init__(self, settings: RolloutsSettings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._open: dict[int, OpenGroup] = {}
        self._ready: dict[int, tuple[OpenGroup, Group]] = {}
        self._submitted = 0
        self._dropped = {False: 0, True: 0}
        self._error: BaseException | None = None
        self._ledgers = {False: FailureLedger(settings.max_excluded_fraction), True: ValidationLedger()}

    @property
    def excluded_fraction(self) -> float:
        """The share of the last trajectories of training that failed."""
        return self._ledgers[False].excluded_fraction

    def open(
        self, rows: Sequence[Mapping[str, Any]], n: int, *, validation: bool, greedy: bool, step: int
    ) -> list[OpenGroup]:
        """Enter a group of `n` trajectories for each row.

        Raises:
            BadInputError: a row without `uid`, or with one that another has.
        """
        with self._changed:
            if validation and not self._expected(True):
                self._ledgers[True] = ValidationLedger()  # each validation counts for itself
            taken = {group.uid for group in self._not_handed_out() if group.validation == validation}
            for row in rows:
                taken.add(_free_uid(row, taken))
            settings = self._settings
            params = settings.validation_sampling_params if validation else settings.sampling_params
            if greedy:
                params = {**params, "temperature": 0.0}
            groups = [self._group(row, n, params, validation=validation, step=step) for row in rows]
            self._open |= {group.number: group for group in groups}
            return groups

    def note(self, group: OpenGroup, result: EpisodeResult) -> bool:
        """Book a trajectory that ended; whether a new sample takes its place."""
        with self._changed:
            ledger = self._ledgers[group.validation]
            ledger.note(result)
            if ledger.too_many:
                self._changed.notify_all()
            return group.note(result)

    def settle(self, group: OpenGroup) -> None:
        """A trajectory's server is given back; its group is ready when that holds for all of it."""
        with self._changed:
            group.settled += 1
            if group.complete:
                del self._open[group.number]
                closed = group.close()
                if closed is None:
                    self._dropped[group.validation] += 1
                else:
                    self._ready[group.number] = (group, closed)
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Whoever waits for groups, now or later, gets this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait_for(self, count: int, *, validation: bool, before_each_look: Callable[[], None]) -> list[OpenGroup]:
        """The next `count` groups in the order of submission, once they are ready; fewer where the rest was dropped.

        Raises:
            BadInputError: more groups are asked for than were submitted.
            TrainingStoppedError: too many trajectories failed.
        """
        with self._changed:
            expected = self._expected(validation)
            if count > expected:
                raise BadInputError(f"next_groups({count}): only {expected} groups are under way; submit more rows")
            while True:
                if self._error is not None:
                    raise self._error
                self._ledgers[validation].check()
                before_each_look()
                ready = [group for group, _ in self._ready.values() if group.validation == validation]
                still_open = any(group.validation == validation for group in self._open.values())
                if len(ready) >= count or not still_open:
                    return sorted(ready, key=lambda group: group.number)[:count]
                self._changed.wait()

    def hand_out(self, groups: Sequence[OpenGroup], count: int, *, validation: bool) -> list[Group]:
        """Strike out groups that are ready, which are all that is left of `count`.

        Raises:
            TrainingStoppedError: too many trajectories failed, or no group is left.
        """
        with self._changed:
            self._ledgers[validation].check(few=True)
            if count and not groups:
                raise TrainingStoppedError("no group of trajectories is left to train on: all were dropped")
            self._dropped[validation] -= count - len(groups)
            return [self._ready.pop(group.number)[1] for group in groups]

    def replace_older_than(self, weight_version: int, *, step: int) -> list[OpenGroup]:
        """Enter new groups for those of training that are ready and were sampled with older weights."""
        with self._changed:
            ready = self._ready.items()
            stale = [number for number, (group, played) in ready if _is_older(group, played, weight_version)]
            fresh = []
            for number in stale:
                old, _ = self._ready.pop(number)
                fresh.append(self._group(old.row, old.size, old.sampling_params, validation=False, step=step))
            self._open |= {group.number: group for group in fresh}
            return fresh

    def forget(self, groups: Sequence[OpenGroup], lost: Collection[str]) -> list[tuple[OpenGroup, list[Episode]]]:
        """Take back groups that are ready and lack these trajectories, each with the samples to play instead."""
        with self._changed:
            again = [(group, episodes) for group in groups if (episodes := group.forget(lost))]
            for group, _ in again:
                self._open[group.number] = self._ready.pop(group.number)[0]
            return again

    def submitted(self) -> list[OpenGroup]:
        """The groups of training that were not handed out, in the order of submission."""
        with self._changed:
            return sorted(
                (group for group in self._not_handed_out() if not group.validation), key=lambda group: group.number
            )

    def _not_handed_out(self) -> list[OpenGroup]:
        return [*self._open.values(), *(group for group, _ in self._ready.values())]

    def _expected(self, validation: bool) -> int:
        """Groups that were submitted and not handed out, those that were dropped since included."""
        groups = sum(group.validation == validation for group in self._not_handed_out())
        return groups + self._dropped[validation]

    def _group(
        self, row: Mapping[str, Any], n: int, sampling_params: Mapping[str, Any], *, validation: bool, step: int
    ) -> OpenGroup:
        self._submitted += 1
        return OpenGroup(
            number=self._submitted,
            uid=row["uid"],
            row=row,
            size=n,
            sampling_params=sampling_params,
            policy=self._settings.group_policy,
            validation=validation,
            step=step,
        )


def _free_uid(row: Mapping[str, Any], taken: Collection[str]) -> str:
    uid = row.get("uid")
    if not isinstance(uid, str) or not uid:
        raise BadInputError(f"a row to roll out needs a `uid` (text); its fields: {', '.join(sorted(row))}")
    if uid in taken:
        raise BadInputError(f"a row with uid {uid!r} is already under way")
    return uid


def _is_older(group: OpenGroup, played: Group, weight_version: int) -> bool:
    """Whether any trajectory of a group of training began with older weights than these."""
    versions = [result.weight_versions for result in played.results]
    oldest = min((oldest for oldest, _ in filter(None, versions)), default=0)
    return not group.validation and oldest < weight_version
