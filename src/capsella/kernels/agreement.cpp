// Routing by agreement on a CPU without votes; docs/routing.md derives it, compiled_agreement.py builds and calls it.
//
// L samples lie side by side in the lanes of vectors ("a block"), so that sums over upper capsules and over pose values need no
// lane to meet another. The votes of one lower capsule and one block live in the first cache and are forgotten. Lower capsules
// are cut into chunks by sizes alone. Threads take chunks as they come; each chunk has sums of its own, which are added in one
// order: results depend neither on the number of threads nor on who did what.
//
// N blocks, T ≥ 2 iterations; tensors are contiguous, samples past the last are zero, and no memory is allocated here.

#include "agreement.h"

namespace {

template <int TD>
inline void vote(const float *u, const float *w, int64_t P, int64_t D, const float *x, float *votes, Block &dot) {
  Block sum[TD];
  UNROLL for (int d = 0; d < TD; ++d) sum[d] = Block::all(0);
  for (int64_t p = 0; p < P; ++p) {
    const Block one = Block::load(u + p * L);
    UNROLL for (int d = 0; d < TD; ++d) sum[d].add(w[p * D + d], one);
  }
  UNROLL for (int d = 0; d < TD; ++d) {
    dot.add(sum[d], Block::load(x + d * L));
    sum[d].store(votes + d * L);
  }
}

// The votes û_ij [D, L] of u_i [P, L] by W_ij [P, D], and ⟨û_ij, x_j⟩.
inline Block vote_for(const Sizes &z, const float *u, const float *w, const float *x, float *votes) {
  Block dot = Block::all(0);
  int64_t d = 0;
  for (; d + TILE <= z.D; d += TILE) vote<TILE>(u, w + d, z.P, z.D, x + d * L, votes + d * L, dot);
  if constexpr (TILE > 4)
    for (; d + 4 <= z.D; d += 4) vote<4>(u, w + d, z.P, z.D, x + d * L, votes + d * L, dot);
  for (; d < z.D; ++d) vote<1>(u, w + d, z.P, z.D, x + d * L, votes + d * L, dot);
  return dot;
}

template <int TD>
inline void add_up(const Sizes &z, const float *u, const float *w, const float *c, int64_t count, float *sums) {
  Block sum[TD];
  UNROLL for (int d = 0; d < TD; ++d) sum[d] = Block::all(0);
  for (int64_t i = 0; i < count; ++i, u += z.lower(), w += z.J * z.P * z.D) {
    const float share = c ? c[i * z.J] : 1.0f / static_cast<float>(z.J);
    for (int64_t p = 0; p < z.P; ++p) {
      Block one = Block::load(u + p * L);
      UNROLL for (int k = 0; k < Block::K; ++k) one.v[k] *= share;
      UNROLL for (int d = 0; d < TD; ++d) sum[d].add(w[p * z.D + d], one);
    }
  }
  UNROLL for (int d = 0; d < TD; ++d) {
    sum[d].add(1.0f, Block::load(sums + d * L));
    sum[d].store(sums + d * L);
  }
}

// Iteration 1, with couplings [I, J] that no sample changes, 1/J without any: adds to sums [N, J, D, L].
void first_pass(const Sizes &z, const float *u, const float *weight, const float *couplings, int64_t chunk, float *sums) {
  const int64_t end = z.start(chunk + 1);
  for (int64_t start = z.start(chunk); start < end; start += NEAR)
    for (int64_t unit = 0; unit < z.units(); ++unit) {
      const int64_t n = unit / z.J, j = unit % z.J, count = std::min(NEAR, end - start);
      const float *from = u + (n * z.I + start) * z.lower(), *w = weight + (start * z.J + j) * z.P * z.D;
      const float *c = couplings ? couplings + start * z.J + j : nullptr;
      float *into = sums + unit * z.unit();
      int64_t d = 0;
      for (; d + TILE <= z.D; d += TILE) add_up<TILE>(z, from, w + d, c, count, into + d * L);
      if constexpr (TILE > 4)
        for (; d + 4 <= z.D; d += 4) add_up<4>(z, from, w + d, c, count, into + d * L);
      for (; d < z.D; ++d) add_up<1>(z, from, w + d, c, count, into + d * L);
    }
}

// A later iteration, or its gradient where couplings are given: factors are c = softmax(prior + ⟨û, x⟩) with x = S, or db from
// dc = ⟨û, x⟩ + more with x = G. Writes the factors [N, I, J, L] if asked to, and adds Σ_i factor_ij û_ij to sums [N, J, D, L].
void pass(const Sizes &z, const float *u, const float *weight, const float *prior, const float *x, int64_t stride,
          const float *given, const float *more, float *kept, int64_t chunk, float *sums, float *own) {
  float *votes = own, *part = votes + z.above(), *factors = part + z.above();
  const int64_t end = z.start(chunk + 1);
  for (int64_t start = z.start(chunk); start < end; start += NEAR)
    for (int64_t n = 0; n < z.blocks(); ++n) {
      // short sums first: one long one would lose digits.
      std::memset(part, 0, sizeof(float) * z.above());
      for (int64_t i = start; i < std::min(start + NEAR, end); ++i) {
        const int64_t row = n * z.I + i;
        for (int64_t j = 0; j < z.J; ++j) {
          const float *w = weight + (i * z.J + j) * z.P * z.D;
          Block dot = vote_for(z, u + row * z.lower(), w, x + (n * z.J + j) * stride, votes + j * z.unit());
          if (prior)
            UNROLL for (int k = 0; k < Block::K; ++k) dot.v[k] += prior[i * z.J + j];
          if (more) dot.add(1.0f, Block::load(more + (row * z.J + j) * L));
          dot.store(factors + j * L);
        }
        if (given)
          softmax_gradient(z.J, given + row * z.J * L, factors);
        else
          softmax(z.J, factors);
        if (kept) std::memcpy(kept + row * z.J * L, factors, sizeof(float) * z.J * L);
        for (int64_t j = 0; j < z.J; ++j) {
          const Block factor = Block::load(factors + j * L);
          for (int64_t k = j * z.unit(); k < (j + 1) * z.unit(); k += L) {
            Block sum = Block::load(part + k);
            sum.add(factor, Block::load(votes + k));
            sum.store(part + k);
          }
        }
      }
      float *total = sums + n * z.above();
      for (int64_t k = 0; k < z.above(); ++k) total[k] += part[k];
    }
}

// The sum of [chunks, N, J, D, L] over chunks for one unit, in the first one's place.
float *gather(const Sizes &z, float *sums, int64_t unit) {
  float *total = sums + unit * z.unit();
  for (int64_t c = 1; c < z.chunks; ++c) {
    const float *more = total + c * z.blocks() * z.above();
    for (int64_t k = 0; k < z.unit(); ++k) total[k] += more[k];
  }
  return total;
}

// poses [B, I, P] of a chunk -> [N, I, P, L].
void pack(const Sizes &z, const float *poses, int64_t chunk, float *into) {
  for (int64_t n = 0; n < z.blocks(); ++n)
    for (int64_t l = 0; l < L; ++l) {
      const int64_t b = n * L + l;
      const float *from = poses + b * z.I * z.P;
      float *to = into + n * z.I * z.lower() + l;
      for (int64_t k = z.start(chunk) * z.P; k < z.start(chunk + 1) * z.P; ++k) to[k * L] = b < z.B ? from[k] : 0.0f;
    }
}

// FD is D where it is known, since rows of W at known distances need no registers for their addresses; else 0.
template <int TP, int FD> inline void add_to_poses(const float *w, int64_t size, const float *d_votes, float *d_poses) {
  const int64_t D = FD ? FD : size;
  Block sum[TP];
  UNROLL for (int p = 0; p < TP; ++p) sum[p] = Block::load(d_poses + p * L);
  for (int64_t d = 0; d < D; ++d) {
    const Block one = Block::load(d_votes + d * L);
    UNROLL for (int p = 0; p < TP; ++p) sum[p].add(w[p * D + d], one);
  }
  UNROLL for (int p = 0; p < TP; ++p) sum[p].store(d_poses + p * L);
}

// du_i += dû_ij W_ijᵀ for du [P, L], with dû_ij = Σ_k f_k x_k as [D, L]: x [K, D, L], f [K, L].
inline void poses_gradient(const Sizes &z, const float *w, const float *f, const float *x, float *d_votes, float *d_poses) {
  int64_t d = 0, p = 0;
  for (; d + 8 <= z.D; d += 8) {
    Block sum[8];
    UNROLL for (int m = 0; m < 8; ++m) sum[m] = Block::all(0);
    for (int64_t k = 0; k < z.vectors(); ++k) {
      const Block factor = Block::load(f + k * L);
      UNROLL for (int m = 0; m < 8; ++m) sum[m].add(factor, Block::load(x + (k * z.D + d + m) * L));
    }
    UNROLL for (int m = 0; m < 8; ++m) sum[m].store(d_votes + (d + m) * L);
  }
  for (; d < z.D; ++d) {
    Block sum = Block::all(0);
    for (int64_t k = 0; k < z.vectors(); ++k) sum.add(Block::load(f + k * L), Block::load(x + (k * z.D + d) * L));
    sum.store(d_votes + d * L);
  }
  for (; z.D == 16 && p + 8 <= z.P; p += 8) add_to_poses<8, 16>(w + p * z.D, z.D, d_votes, d_poses + p * L);
  for (; z.D == 8 && p + 8 <= z.P; p += 8) add_to_poses<8, 8>(w + p * z.D, z.D, d_votes, d_poses + p * L);
  for (; p + 4 <= z.P; p += 4) add_to_poses<4, 0>(w + p * z.D, z.D, d_votes, d_poses + p * L);
  for (; p < z.P; ++p) add_to_poses<1, 0>(w + p * z.D, z.D, d_votes, d_poses + p * L);
}

template <int TD, int TP>
inline void add_to_weight(const float *u, const float *d_votes, int64_t D, int64_t left, bool fresh, float *d_weight) {
  using Row = Floats<TD>;
  Row sum[TP];
  UNROLL for (int p = 0; p < TP; ++p) sum[p] = Row::all(0);
  for (int64_t l = 0; l < L; ++l) {
    const Row one = Row::load(d_votes + l * TD);
    UNROLL for (int p = 0; p < TP; ++p) sum[p].add(u[p * L + l], one);
  }
  UNROLL for (int p = 0; p < TP; ++p, d_weight += D)
    if (left >= TD) {
      if (!fresh) sum[p].add(1.0f, Row::load(d_weight));
      sum[p].store(d_weight);
    } else {
      float row[TD];
      sum[p].store(row);
      for (int64_t d = 0; d < left; ++d) d_weight[d] = fresh ? row[d] : d_weight[d] + row[d];
    }
}

// dW_ij += u_iᵀ dû_ij for pose values d … d + TD: a sum over samples, so that dû is made with pose values in the lanes, x [K, L, D].
template <int TD>
inline void weight_gradient(const Sizes &z, const float *u, const float *f, const float *x, int64_t d, bool fresh, float *d_weight) {
  using Row = Floats<TD>;
  float d_votes[L * TD];
  for (int l = 0; l < L; l += 8) {
    Row sum[8];
    UNROLL for (int m = 0; m < 8; ++m) sum[m] = Row::all(0);
    for (int64_t k = 0; k < z.vectors(); ++k)
      UNROLL for (int m = 0; m < 8; ++m) sum[m].add(f[k * L + l + m], Row::load(x + (k * L + l + m) * z.wide() + d));
    UNROLL for (int m = 0; m < 8; ++m) sum[m].store(d_votes + (l + m) * TD);
  }
  int64_t p = 0;
  for (; p + 8 <= z.P; p += 8) add_to_weight<TD, 8>(u + p * L, d_votes, z.D, z.D - d, fresh, d_weight + p * z.D + d);
  for (; p + 4 <= z.P; p += 4) add_to_weight<TD, 4>(u + p * L, d_votes, z.D, z.D - d, fresh, d_weight + p * z.D + d);
  for (; p < z.P; ++p) add_to_weight<TD, 1>(u + p * L, d_votes, z.D, z.D - d, fresh, d_weight + p * z.D + d);
}

inline float across(const Block &x) {
  float row[L], sum = 0;
  x.store(row);
  for (int l = 0; l < L; ++l) sum += row[l];
  return sum;
}

struct Last {
  const float *u, *weight, *couplings, *history, *steps, *vectors, *turned;
  bool prior;
  float *d_poses, *d_weight, *d_prior;
};

// du, dW and dprior of a chunk, given c^t, db^t and the vectors G^t, S^t as [N, J, K, D, L] and turned to [N, J, K, L, D].
void last_pass(const Sizes &z, const Last &g, int64_t chunk, float *own) {
  const int64_t K = z.vectors();
  float *f = own, *d_votes = f + K * L, *d_lower = d_votes + z.unit(), *d_first = d_lower + z.lower();
  for (int64_t i = z.start(chunk); i < z.start(chunk + 1); ++i) {
    float *d_prior = g.prior ? g.d_prior + i * z.J : nullptr;
    std::fill(d_first, d_first + z.J, 0.0f);
    if (d_prior) std::fill(d_prior, d_prior + z.J, 0.0f);
    for (int64_t n = 0; n < z.blocks(); ++n) {
      const float *lower = g.u + (n * z.I + i) * z.lower();
      std::fill(d_lower, d_lower + z.lower(), 0.0f);
      for (int64_t j = 0; j < z.J; ++j) {
        const int64_t unit = n * z.J + j, pair = i * z.J + j, at = ((n * z.I + i) * z.J + j) * L;
        const float *x = g.vectors + unit * K * z.unit(), *y = g.turned + unit * K * L * z.wide();
        const float *w = g.weight + pair * z.P * z.D;
        Block::all(g.couplings ? g.couplings[pair] : 1.0f / static_cast<float>(z.J)).store(f);
        for (int64_t t = 1; t < z.T; ++t) {
          std::memcpy(f + t * L, g.history + (t - 1) * z.pairs() + at, sizeof(float) * L);
          std::memcpy(f + (z.T - 1 + t) * L, g.steps + (t - 1) * z.pairs() + at, sizeof(float) * L);
        }
        if (d_prior) {
          for (int64_t t = z.T; t < K; ++t) d_prior[j] += across(Block::load(f + t * L));
          d_first[j] += across(vote_for(z, lower, w, x, d_votes));
        }
        poses_gradient(z, w, f, x, d_votes, d_lower);
        float *d_w = g.d_weight + pair * z.P * z.D;
        int64_t d = 0;
        for (; d + 16 <= z.D; d += 16) weight_gradient<16>(z, lower, f, y, d, n == 0, d_w);
        for (; d + 8 <= z.D; d += 8) weight_gradient<8>(z, lower, f, y, d, n == 0, d_w);
        for (; d < z.D; d += 4) weight_gradient<4>(z, lower, f, y, d, n == 0, d_w);
      }
      for (int64_t l = 0; l < std::min<int64_t>(L, z.B - n * L); ++l)
        for (int64_t p = 0; p < z.P; ++p) g.d_poses[((n * L + l) * z.I + i) * z.P + p] = d_lower[p * L + l];
    }
    if (!d_prior) continue;
    // iteration 1: its couplings are one softmax for all samples.
    const float *c = g.couplings + i * z.J;
    float mean = 0;
    for (int64_t j = 0; j < z.J; ++j) mean += c[j] * d_first[j];
    for (int64_t j = 0; j < z.J; ++j) d_prior[j] += c[j] * (d_first[j] - mean);
  }
}

}  // namespace

extern "C" {

// floats of working memory.
int64_t capsella_agreement_room(const Sizes *z, int64_t threads, int64_t backward) {
  const int64_t both = z->blocks() * z->I * z->lower() + (z->chunks + 1) * z->blocks() * z->above() + threads * z->own();
  if (!backward) return both;
  return both + (z->T - 1) * z->pairs() + z->units() * z->vectors() * (z->unit() + L * z->wide());
}

// poses [B, I, P], weight [I, J, P, D], couplings of iteration 1 and prior [I, J] or both null, bias [J, D] or null ->
// above [B, J, D], couplings of iterations 2…T [T − 1, N, I, J, L] unless null, s of all iterations [T, N, J, D, L].
void capsella_agreement(const Sizes *sizes, int64_t threads, int64_t kind, const float *poses, const float *weight,
                        const float *couplings, const float *prior, const float *bias, float *above, float *history, float *sums,
                        float *room) {
  const Sizes &z = *sizes;
  const int64_t all = z.blocks() * z.above();
  float *u = room, *partial = u + z.blocks() * z.I * z.lower(), *running = partial + z.chunks * all, *owns = running + all;
  Team team(threads);
  for (int64_t t = 0; t < z.T; ++t) {
    team.each(z.chunks, [&](int64_t rank, int64_t chunk) {
      float *into = partial + chunk * all, *kept = t && history ? history + (t - 1) * z.pairs() : nullptr;
      std::memset(into, 0, sizeof(float) * all);
      if (t == 0) {
        pack(z, poses, chunk, u);
        first_pass(z, u, weight, couplings, chunk, into);
      } else {
        pass(z, u, weight, prior, running, z.unit(), nullptr, nullptr, kept, chunk, into, owns + rank * z.own());
      }
    });
    team.each(z.units(), [&](int64_t, int64_t unit) {
      const int64_t n = unit / z.J, j = unit % z.J;
      float *total = gather(z, partial, unit), *s = sums + t * all + unit * z.unit(), *S = running + unit * z.unit();
      for (int64_t k = 0; k < z.unit(); ++k) s[k] = bias ? total[k] + bias[j * z.D + k / L] : total[k];
      squash(z.D, kind, s, nullptr, total);
      for (int64_t k = 0; k < z.unit(); ++k) S[k] = t ? S[k] + total[k] : total[k];
      for (int64_t l = 0; t + 1 == z.T && l < std::min<int64_t>(L, z.B - n * L); ++l)
        for (int64_t d = 0; d < z.D; ++d) above[((n * L + l) * z.J + j) * z.D + d] = total[d * L + l];
    });
  }
}

// ∂L/∂above [B, J, D], ∂L/∂history or null, and what the forward pass took and kept -> gradients; the bias's as [N, J, D].
void capsella_agreement_backward(const Sizes *sizes, int64_t threads, int64_t kind, const float *d_above,
                                 const float *d_history, const float *poses, const float *weight, const float *couplings,
                                 const float *history, const float *sums, int64_t has_prior, float *d_poses, float *d_weight,
                                 float *d_prior, float *d_bias, float *room) {
  const Sizes &z = *sizes;
  const int64_t all = z.blocks() * z.above(), K = z.vectors();
  float *u = room, *partial = u + z.blocks() * z.I * z.lower(), *back = partial + z.chunks * all, *steps = back + all;
  float *vectors = steps + (z.T - 1) * z.pairs(), *turned = vectors + z.units() * K * z.unit();
  float *owns = turned + z.units() * K * L * z.wide();
  const Last last{u, weight, couplings, history, steps, vectors, turned, has_prior != 0, d_poses, d_weight, d_prior};
  Team team(threads);
  // vectors of a unit: G of iterations 1…T, then S of iterations 2…T.
  team.each(z.units(), [&](int64_t, int64_t unit) {
    const int64_t n = unit / z.J, j = unit % z.J;
    float *x = vectors + unit * K * z.unit(), *pull = back + unit * z.unit();
    for (int64_t t = 0; t + 1 < z.T; ++t) {
      float *S = x + (z.T + t) * z.unit();
      squash(z.D, kind, sums + t * all + unit * z.unit(), nullptr, S);
      for (int64_t k = 0; t > 0 && k < z.unit(); ++k) S[k] += S[k - z.unit()];
    }
    for (int64_t k = 0; k < z.unit(); ++k) {
      const int64_t b = n * L + k % L;
      pull[k] = b < z.B ? d_above[(b * z.J + j) * z.D + k / L] : 0.0f;
    }
    squash(z.D, kind, sums + (z.T - 1) * all + unit * z.unit(), pull, x + (z.T - 1) * z.unit());
    std::memset(pull, 0, sizeof(float) * z.unit());
  });
  for (int64_t t = z.T - 1; t > 0; --t) {
    team.each(z.chunks, [&](int64_t rank, int64_t chunk) {
      float *into = partial + chunk * all;
      std::memset(into, 0, sizeof(float) * all);
      if (t == z.T - 1) pack(z, poses, chunk, u);
      const int64_t at = (t - 1) * z.pairs();
      const float *more = d_history ? d_history + at : nullptr;
      float *own = owns + rank * z.own();
      pass(z, u, weight, nullptr, vectors + t * z.unit(), K * z.unit(), history + at, more, steps + at, chunk, into, own);
    });
    team.each(z.units(), [&](int64_t, int64_t unit) {
      float *x = vectors + unit * K * z.unit(), *pull = back + unit * z.unit(), *total = gather(z, partial, unit);
      for (int64_t k = 0; k < z.unit(); ++k) pull[k] += total[k];
      squash(z.D, kind, sums + (t - 1) * all + unit * z.unit(), pull, x + (t - 1) * z.unit());
      if (t > 1) return;
      float *y = turned + unit * K * L * z.wide();
      for (int64_t k = 0; k < K; ++k)
        for (int64_t l = 0; l < L; ++l)
          for (int64_t d = 0; d < z.wide(); ++d) y[(k * L + l) * z.wide() + d] = d < z.D ? x[(k * z.D + d) * L + l] : 0.0f;
      for (int64_t d = 0; d < z.D; ++d) {
        float sum = 0;
        for (int64_t k = 0; k < z.T; ++k) sum += across(Block::load(x + (k * z.D + d) * L));
        d_bias[unit * z.D + d] = sum;
      }
    });
  }
  team.each(z.chunks, [&](int64_t rank, int64_t chunk) { last_pass(z, last, chunk, owns + rank * z.own()); });
}

}  // extern "C"
