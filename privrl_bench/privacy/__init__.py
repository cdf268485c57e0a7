"""The gate, its mechanisms and its accounting.

What the gate (`gate.py`) proves, given what is assumed below:

1. One release is a Gaussian mechanism with multiplier z on one user's row, jointly over its blocks
   (`release`; sensitivity: `clip.py`; rounding: `grid.py`). With running sums releases are increments, and
   all of them together are one mechanism on a row (`mechanisms/tree.py`).
2. The transcript of all rounds is, for one user and given all other users' data, the composition of the
   releases that the user is in; everything after the gate is post-processing. A user who is in one round
   pays for one release (adaptive parallel composition). A Poisson user may be in every round.
3. Every release has a line in the ledger before its noise is drawn, and epsilon is computed from the
   lines (`guarantee` refuses a ledger with gaps or with lines of other settings). A round that was attempted
   again counts as often as it was attempted. Lines of up to 64 rounds, at most one round of 256, are written
   at once; a crash counts all of them.

What is assumed, and what enforces it:

a. A row, and whether it is valid, is a function of that user's data and of earlier releases only:
   `algorithms/*.user_update`. Tested bit for bit by `privrl audit leaks` (tests/audit/test_leaks.py, every
   shipped algorithm and option). Declared exceptions must be permitted here by name and stand in the guarantee.
b. A unit is in at most `Unit.participation` rounds, in one slot of a round, and a round has the same users
   at every attempt: `users/collectors/live.py` (tests/users/test_simulated.py); Poisson cohorts may
   differ, a caveat then says so. Users whom an environment declares are named to it by number; in fixed
   cohorts each is in one round (`draw`: tests/training/test_declared_users.py).
c. Poisson: see `sampling/poisson.py`. The size of a cohort is drawn here, once for a round; slots beyond it
   are not valid (tests/users/test_simulated.py). The members are drawn here too where they are in a
   dataset (`users/collectors/dataset.py`) or declared by an environment. Other live users are simulated,
   independently in every round: a deployment must draw them uniformly, afresh and in secret (a note).
d. U, z, clip, blocks, the number of rounds and delta are public: they are configuration. A replica ends
   early when its parameters, which are released, are not finite, or when the user of the program or a signal
   stops it; its guarantee stays that of all planned rounds.
e. No private value leaves by another path: metrics have an audience (`metrics.py`), only those `released`
   are sent, checkpoints stay, `policy.pt` holds released values. Timing is not protected.
f. The adversary sees every intermediate release, the ledger and the configuration, but with seeded noise not
   the seed, and not whether a seeded round was attempted again (notes say so).
g. R replicas and other runs are experiments on the same users: each epsilon is for its run alone (a note
   says so), unless they are charged to one budget (`budget.py`).
h. A resumed run has the same configuration, alone in its folder: `training/runner.py`,
   `training/folder.py` (lock, comparison).
i. Local: observations of an environment (and rewards, if noised) go to `DeviceNoise` and nowhere else:
   `users/collectors/live.py`, held by the leak test, which then changes what a device sees, not what it shows.
j. Parameters change through `Released` alone: `training/trainer.py` has one call of `server`. State that
   an algorithm kept of a row elsewhere is found by the leak test, not by the imports.
"""
