"""EM routing on GPUs that never stores votes (docs/routing.md, "Routing without votes").

EM squares the votes, so each has to be made: the poses of BB samples times the weights of one pair of capsules, on the matrix
units, again in every pass. Then a thread owns some samples and holds every value of theirs in registers of its own: tensors
are tuples, one [BB] for every value of a pose, and all data lie in blocks of BB samples side by side, so that the next value is
always BB places away: a constant in the instruction, whatever the number N of blocks. Nothing is exchanged between threads but
the products.

``levels_kernel`` sums over upper capsules, ``sums_kernel`` over lower ones, on the way there and back; ``finish_kernel`` and
``turn_kernel`` (``triton_em_small``) do what is left for every upper capsule, ``gradients_kernel`` makes the gradients.
Programs write their own sums, which are added in a fixed order: results are the same every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from capsella.kernels._blocks import add

# sizes that change from call to call.
SIZES = ("N", "I", "step", "each", "blocks")


@triton.jit
def _rows(p_rows, COUNT: tl.constexpr, BB: tl.constexpr):
    """Load so many rows of samples."""
    rows = ()
    for k in tl.static_range(COUNT):
        rows = rows + (tl.load(p_rows + k * BB).to(tl.float32),)
    return rows


@triton.jit
def _pose(p_pose, P: tl.constexpr, R: tl.constexpr, BB: tl.constexpr, BP: tl.constexpr):
    """Load the R rows of a pose [P, BB], each as a tile [BP, BB] for the matrix units."""
    p, s = tl.arange(0, BP), tl.arange(0, BB)
    rows = ()
    for r in tl.static_range(R):
        rows = rows + (tl.load(p_pose + (r * (P // R) + p[:, None]) * BB + s[None, :], mask=p[:, None] < P // R, other=0.0),)
    return rows


@triton.jit
def _weights(p_weight, P: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr):
    """Load the weights [P/R, D/R] of a pair of capsules, as a tile [BP, BD]."""
    p, d = tl.arange(0, BP), tl.arange(0, BD)
    inside = (p[:, None] < P // R) & (d[None, :] < D // R)
    return tl.load(p_weight + p[:, None] * (D // R) + d[None, :], mask=inside, other=0.0)


@triton.jit
def _cut(x, COUNT: tl.constexpr, BB: tl.constexpr, WIDTH: tl.constexpr):
    """Cut each of so many tiles [BB, WIDTH] into its two halves."""
    halves = ()
    for k in tl.static_range(COUNT):
        halves = halves + tl.split(tl.permute(tl.reshape(x[k], [BB, 2, WIDTH // 2]), (0, 2, 1)))
    return halves


@triton.jit
def _columns(x, COUNT: tl.constexpr, BB: tl.constexpr, WIDTH: tl.constexpr):
    """Take the first columns [BB] of a tile [BB, WIDTH]."""
    tiles = (x,)
    for bit in tl.static_range(6):
        if WIDTH >> bit > 1:
            tiles = _cut(tiles, 1 << bit, BB, WIDTH >> bit)
    columns = ()
    for k in tl.static_range(COUNT):
        columns = columns + (tl.reshape(tiles[k], [BB]),)
    return columns


@triton.jit
def _votes(rows, weights, D: tl.constexpr, R: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr):
    """Make the D values of a vote, from the rows of a pose and the weights that all of them share."""
    votes = ()
    for r in tl.static_range(R):
        votes = votes + _columns(tl.dot(tl.trans(rows[r]), weights, input_precision="ieee"), D // R, BB, BD)
    return votes


@triton.jit
def _distance(votes, fit, D: tl.constexpr):
    """Σ_d (û−μ)²/σ² for a fit μ, 1/σ²."""
    total = tl.zeros_like(votes[0])
    for d in tl.static_range(D):
        far = votes[d] - fit[d]
        total += far * (far * fit[D + d])
    return total


@triton.jit
def _asked(votes, mean, pull, alpha, D: tl.constexpr):
    """What an M-step asks of a coupling, from its μ, a pull A, C, and α.

    With w_ij = r_ij/S_j and S_j = Σ_i r_ij:  S_j ∂L/∂r_ij = α_j + (û−μ)·A + (û−μ)²·C   and   ∂L/∂û_ij = w_ij (A + 2C(û−μ)).
    Neither divides by S, which vanishes where another Gaussian explains every vote.
    """
    for d in tl.static_range(D):
        far = votes[d] - mean[d]
        alpha += far * (pull[d] + far * pull[D + d])
    return alpha


@triton.jit(do_not_specialize=SIZES)
def levels_kernel(
    p_poses,  # [N, I, P, BB]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_active,  # [N, I, BB]: activations of the lower capsules
    p_fit,  # [N, J, 2, D, BB]: μ, 1/σ² of the E-step
    p_constant,  # [N, J, BB]
    p_next,  # [N, J, 2, D, BB]: the fit after it, for its μ
    p_pull,  # [N, J, 2, D, BB]: A, C, see _asked
    p_alpha,  # [N, J, BB]
    p_total,  # [N, J, 3, BB]: S of the M-step that is pulled, as s, 1/(S e^−s) and S e^−s
    p_level,  # [N, I, BB]: log of the softmax's denominator; written without PULL, read with it
    p_mean,  # [N, I, BB]: a_i Σ_j R ∂L/∂r, which no a_i makes too large; written with PULL
    I,
    step,
    PULL: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
):
    """Sum over upper capsules what the E-step, or the way back through it, needs of all of them."""
    s = tl.arange(0, BB)
    block = tl.program_id(1)
    first, lowers = tl.program_id(0) * BI, block.to(tl.int64) * I
    u = ()
    active = ()
    level = ()
    total = ()
    for e in tl.static_range(BI):
        # of what is left over in the last program, the last lower capsule is done again.
        at = lowers + tl.minimum(first + e, I - 1)
        u = u + (_pose(p_poses + at * (P * BB), P, R, BB, BP),)
        if PULL:
            active = active + (tl.load(p_active + at * BB + s),)
        level = level + ((tl.load(p_level + at * BB + s) if PULL else tl.full([BB], float("-inf"), tl.float32)),)
        total = total + (tl.zeros([BB], tl.float32),)
    for j in range(J):
        upper, at_w = block * J + j, j * ((P // R) * (D // R))
        record = upper * (2 * D * BB) + s
        constant = tl.load(p_constant + upper * BB + s)
        if PULL:
            shift = tl.load(p_total + upper * (3 * BB) + s)
            share = tl.load(p_total + upper * (3 * BB) + BB + s)
        votes = ()
        distance = ()
        asked = ()
        for e in tl.static_range(BI):
            weights = _weights(p_weight + tl.minimum(first + e, I - 1).to(tl.int64) * step + at_w, P, D, R, BP, BD)
            votes = votes + (_votes(u[e], weights, D, R, BB, BD),)
            distance = distance + (tl.zeros([BB], tl.float32),)
            if PULL:
                asked = asked + (tl.load(p_alpha + upper * BB + s),)
        for d in tl.static_range(D):
            mean = tl.load(p_fit + record + d * BB)
            inverse = tl.load(p_fit + record + (D + d) * BB)
            if PULL:
                after = tl.load(p_next + record + d * BB)
                straight = tl.load(p_pull + record + d * BB)
                bent = tl.load(p_pull + record + (D + d) * BB)
            farther = ()
            more = ()
            for e in tl.static_range(BI):
                far = votes[e][d] - mean
                farther = farther + (distance[e] + far * (far * inverse),)
                if PULL:
                    far = votes[e][d] - after
                    more = more + (asked[e] + far * (straight + far * bent),)
            distance = farther
            asked = more
        new_level = ()
        new_total = ()
        for e in tl.static_range(BI):
            logit = constant - 0.5 * distance[e]
            if PULL:
                new_level = new_level + (level[e],)
                new_total = new_total + (total[e] + active[e] * (tl.exp(logit - level[e] - shift) * share) * asked[e],)
            else:
                higher = tl.maximum(level[e], logit)
                new_level = new_level + (higher,)
                new_total = new_total + (total[e] * tl.exp(level[e] - higher) + tl.exp(logit - higher),)
        level = new_level
        total = new_total
    for e in tl.static_range(BI):
        at = (lowers + tl.minimum(first + e, I - 1)) * BB + s
        if PULL:
            tl.store(p_mean + at, total[e])
        else:
            tl.store(p_level + at, level[e] + tl.log(total[e]))


@triton.jit(do_not_specialize=SIZES)
def sums_kernel(
    p_poses,  # [N, I, P, BB]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_active,  # [N, I, BB]
    p_fit,  # [N, J, 2, D, BB]
    p_constant,  # [N, J, BB]
    p_next,  # [N, J, 2, D, BB]: the fit after it; its μ is what "first" and "spread" take powers around
    p_pull,  # [N, J, 2, D, BB]
    p_alpha,  # [N, J, BB]
    p_total,  # [N, J, 3, BB]
    p_level,  # [N, I, BB]
    p_mean,  # [N, I, BB]
    p_again,  # [N, J, BB]: with AGAIN, whether the sums are asked for
    p_out,  # [chunks, N, J, 1 + 2·D, BB]
    p_top,  # [chunks, N, J, BB]: log of what the sums of "step" were divided by
    I,
    step,
    each,
    KIND: tl.constexpr,  # "first" (R = 1/J), "step" and "spread" (R from the fit), or "pull"
    AGAIN: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BB: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
):
    """Sum x, x(û−k) and x(û−k)² over a chunk of lower capsules for one upper one.

    x is r ("first"), r over the largest of the chunk ("step"), w ("spread"), or ∂L/∂z = w S ∂L/∂r − r Σ_k R ∂L/∂r ("pull"): its
    parts are made in one way everywhere, so that they cancel to the last digit where one upper capsule takes all. k is the
    mean of the fit that r comes from, or of the one after it ("first", "spread").
    """
    s = tl.arange(0, BB)
    block, chunk, j = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    upper = block * J + j
    begin = chunk * each
    end = tl.minimum(begin + each, I)
    if AGAIN:
        # where nobody asks there is nothing to do.
        end = tl.where(tl.max(tl.load(p_again + upper * BB + s), 0) > 0, end, begin)
    record = upper * (2 * D * BB) + s
    at_w = j * ((P // R) * (D // R))
    zeros = tl.zeros([BB], tl.float32)
    zeroth = zeros
    first = ()
    second = ()
    for _ in tl.static_range(D):
        first = first + (zeros,)
        second = second + (zeros,)
    if KIND != "first":
        fit = _rows(p_fit + record, 2 * D, BB)
        constant = tl.load(p_constant + upper * BB + s)
    if KIND != "step":
        after = _rows(p_next + record, D, BB)
    if KIND == "pull":
        pull = _rows(p_pull + record, 2 * D, BB)
        alpha = tl.load(p_alpha + upper * BB + s)
    if (KIND == "spread") | (KIND == "pull"):
        shift = tl.load(p_total + upper * (3 * BB) + s)
        share = tl.load(p_total + upper * (3 * BB) + BB + s)
    top = tl.full([BB], float("-inf"), tl.float32)
    for index in range(end - begin):
        i = (begin + index).to(tl.int64)
        at = block.to(tl.int64) * I + i
        active = tl.load(p_active + at * BB + s)
        if KIND != "first":
            level = tl.load(p_level + at * BB + s)
        if KIND == "pull":
            mean = tl.load(p_mean + at * BB + s)
        weights = _weights(p_weight + i * step + at_w, P, D, R, BP, BD)
        votes = _votes(_pose(p_poses + at * (P * BB), P, R, BB, BP), weights, D, R, BB, BD)
        if KIND == "first":
            x = active / J
        else:
            logit = constant - 0.5 * _distance(votes, fit, D) - level
            if KIND == "step":
                logit += tl.log(active)
                # r may vanish for all lower capsules; divided by the largest so far, it does not.
                higher = tl.maximum(top, logit)
                base = tl.where(higher == float("-inf"), 0.0, higher)
                shrink = tl.exp(top - base)
                top = higher
                x = tl.exp(logit - base)
                zeroth *= shrink
            elif KIND == "spread":
                x = active * (tl.exp(logit - shift) * share)
            else:
                asked = _asked(votes, after, pull, alpha, D)
                x = active * (tl.exp(logit - shift) * share) * asked - tl.exp(logit) * mean
        zeroth += x
        new_first = ()
        new_second = ()
        for d in tl.static_range(D):
            far = votes[d] - (after[d] if (KIND == "first") | (KIND == "spread") else fit[d])
            if KIND == "step":
                new_first = new_first + (first[d] * shrink + x * far,)
                new_second = new_second + (second[d] * shrink + x * far * far,)
            else:
                new_first = new_first + (first[d] + x * far,)
                new_second = new_second + (second[d] + x * far * far,)
        first = new_first
        second = new_second
    part = chunk.to(tl.int64) * (tl.num_programs(0) * J) + upper
    p_sums = p_out + part * ((1 + 2 * D) * BB) + s
    tl.store(p_sums, zeroth)
    for d in tl.static_range(D):
        tl.store(p_sums + (1 + d) * BB, first[d])
        tl.store(p_sums + (1 + D + d) * BB, second[d])
    if KIND == "step":
        tl.store(p_top + part * BB + s, top)


@triton.jit
def _join_halves(x, HALF: tl.constexpr):
    pairs = ()
    for k in tl.static_range(HALF):
        pairs = pairs + (tl.join(x[k], x[HALF + k]),)
    return pairs


@triton.jit
def _stack(x, COUNT: tl.constexpr, TO: tl.constexpr, BB: tl.constexpr):
    """Make [BB, TO] of so many [BB], zeros at the end."""
    for _ in tl.static_range(TO - COUNT):
        x = x + (tl.zeros_like(x[0]),)
    # neighbours are joined last, so that they end up side by side.
    for bit in tl.static_range(6):
        if TO >> (bit + 1) > 0:
            x = _join_halves(x, TO >> (bit + 1))
    return tl.reshape(x[0], [BB, TO])


@triton.jit
def _iteration(
    t,
    sources,  # as in gradients_kernel: fits, constants, pulls, alphas, totals, levels, means
    upper,  # which upper capsule of which block
    uppers,  # of an iteration
    lower,  # where the lower capsule's numbers are, those of an iteration, its activation
    votes,
    mean,  # of the fit that the iteration begins with
    d_votes,
    KIND: tl.constexpr,  # "first": everything is at a distance of zero from the fit before it; "later"; or "any"
    J: tl.constexpr,
    D: tl.constexpr,
    BB: tl.constexpr,
):
    """Add the share of one iteration to ∂û; return the next mean, ∂û, and what the first asks of the activation."""
    p_fits, p_constants, p_pulls, p_alphas, p_totals, p_levels, p_means = sources
    at, step, active = lower
    s = tl.arange(0, BB)
    here = t * uppers + upper
    p_fit = p_fits + here * (2 * D * BB) + s
    p_next = p_fits + (here + uppers) * (2 * D * BB) + s
    p_pull = p_pulls + here * (2 * D * BB) + s
    p_total = p_totals + here * (3 * BB) + s
    shift, share = tl.load(p_total), tl.load(p_total + BB)
    asked = tl.load(p_alphas + here * BB + s)
    distance = tl.zeros([BB], tl.float32)
    after = ()
    closer = ()
    pulled = ()
    for k in tl.static_range(D):
        if KIND != "first":
            far = votes[k] - mean[k]
            closer = closer + (far * tl.load(p_fit + (D + k) * BB),)
            distance += far * closer[k]  # to the digit as in _distance
        after = after + (tl.load(p_next + k * BB),)
        far = votes[k] - after[k]
        straight, bent = tl.load(p_pull + k * BB), far * tl.load(p_pull + (D + k) * BB)
        asked += far * (straight + bent)
        pulled = pulled + (straight + 2 * bent,)
    if KIND == "first":
        x = tl.exp(-shift) * share * (1.0 / J)
    else:
        before = (t - 1) * step + at
        if KIND == "any":
            # the first has no level, and nothing is asked of its logit.
            level = tl.load(p_levels + before, mask=(s >= 0) & (t > 0), other=0.0)
            others = tl.load(p_means + before, mask=(s >= 0) & (t > 0), other=0.0)
        else:
            level, others = tl.load(p_levels + before), tl.load(p_means + before)
        logit = tl.load(p_constants + here * BB + s) - 0.5 * distance - level
        x = tl.exp(logit - shift) * share
    d_active = x * asked
    x *= active
    if KIND != "first":
        d_logit = x * asked - tl.exp(logit) * others
    summed = ()
    for k in tl.static_range(D):
        d_vote = d_votes[k] + x * pulled[k]
        if KIND != "first":
            d_vote -= d_logit * closer[k]
        summed = summed + (d_vote,)
    return after, summed, d_active


@triton.jit(do_not_specialize=SIZES)
def gradients_kernel(
    p_poses,  # [N, I, P, BB]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_active,  # [N, I, BB]
    p_fits,  # [T + 1, N, J, 2, D, BB]
    p_constants,  # [T + 1, N, J, BB]
    p_pulls,  # [T, N, J, 2, D, BB]
    p_alphas,  # [T, N, J, BB]
    p_totals,  # [T, N, J, 3, BB]: S of the M-steps
    p_levels,  # [T − 1, N, I, BB]
    p_means,  # [T − 1, N, I, BB]
    p_d_poses,  # [N, I, P, BB]
    p_d_weight,  # [splits, I or chunks, J, P/R, D/R]
    p_d_active,  # [N, I, BB]
    N,
    I,
    step,
    each,
    blocks,
    T: tl.constexpr,
    SHARED: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BB: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
    TYPE: tl.constexpr,
):
    """∂û = Σ_t r^t (A^t + 2C^t(û−μ^t)) − ∂z^t (û−μ^(t−1))/σ²^(t−1), turned at once into the gradients of the inputs."""
    chunk, split = tl.program_id(0), tl.program_id(1)
    p, d, s = tl.arange(0, BP), tl.arange(0, BD), tl.arange(0, BB)
    uppers, lowers = N * J, N.to(tl.int64) * I
    at_w = p[:, None] * (D // R) + d[None, :]
    w_mask = (p[:, None] < P // R) & (d[None, :] < D // R)
    at_u = p[:, None] * BB + s[None, :]
    begin = chunk * each
    for index in range(tl.minimum(each, I - begin)):
        i = begin + index
        place = (split * tl.num_programs(0) + chunk if SHARED else split * I + i).to(tl.int64)
        for own in range(tl.minimum(blocks, N - split * blocks)):
            block = split * blocks + own
            at = block.to(tl.int64) * I + i
            rows = _pose(p_poses + at * (P * BB), P, R, BB, BP)
            active = tl.load(p_active + at * BB + s)
            d_active = tl.zeros([BB], tl.float32)
            for t in tl.static_range(T - 1):
                d_active += tl.load(p_means + (t * lowers + at) * BB + s) / active
            d_u = ()
            for _ in tl.static_range(R):
                d_u = d_u + (tl.zeros([BB, BP], tl.float32),)
            for j in range(J):
                upper = block * J + j
                weights = _weights(p_weight + i.to(tl.int64) * step + j * ((P // R) * (D // R)), P, D, R, BP, BD)
                votes = _votes(rows, weights, D, R, BB, BD)
                d_votes = ()
                for _ in tl.static_range(D):
                    d_votes = d_votes + (tl.zeros([BB], tl.float32),)
                lower = (at * BB + s, lowers * BB, active)
                sources = (p_fits, p_constants, p_pulls, p_alphas, p_totals, p_levels, p_means)
                # short poses are faster with all iterations written out; with long ones that takes the compiler minutes.
                if D <= 16:
                    mean, d_votes, more = _iteration(0, sources, upper, uppers, lower, votes, (), d_votes, "first", J, D, BB)
                    d_active += more
                    for t in tl.static_range(1, T):
                        mean, d_votes, more = _iteration(
                            t, sources, upper, uppers, lower, votes, mean, d_votes, "later", J, D, BB
                        )
                else:
                    mean = ()
                    for _ in tl.static_range(D):
                        mean = mean + (tl.zeros([BB], tl.float32),)
                    for each_t in range(T):
                        mean, d_votes, more = _iteration(
                            each_t, sources, upper, uppers, lower, votes, mean, d_votes, "any", J, D, BB
                        )
                        d_active += tl.where(each_t == 0, more, 0.0)
                d_w = tl.zeros([BP, BD], tl.float32)
                new_d_u = ()
                for r in tl.static_range(R):
                    row = ()
                    for k in tl.static_range(D // R):
                        row = row + (d_votes[r * (D // R) + k],)
                    narrow = _stack(row, D // R, BD, BB).to(TYPE)
                    new_d_u = new_d_u + (tl.dot(narrow, tl.trans(weights), d_u[r], input_precision="ieee"),)
                    d_w = tl.dot(rows[r], narrow, d_w, input_precision="ieee")
                d_u = new_d_u
                p_d_w = p_d_weight + (place * J + j) * ((P // R) * (D // R)) + at_w
                add(p_d_w, d_w, w_mask, (own == 0) & ((index == 0) | (not SHARED)))
            for r in tl.static_range(R):
                p_d_u = p_d_poses + at * (P * BB) + r * ((P // R) * BB) + at_u
                tl.store(p_d_u, tl.trans(d_u[r]), mask=p[:, None] < P // R)
            tl.store(p_d_active + at * BB + s, d_active)
