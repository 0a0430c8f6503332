// What agreement.cpp is made of: vectors that a machine's compiler knows, threads that work together, softmax and squash.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

// arrays of vectors stay in registers only where every loop over them is unrolled.
#define UNROLL _Pragma("GCC unroll 16")

namespace {

// floats in a vector of this machine; upper pose values that are summed up in registers at once.
#if defined(__AVX512F__)
constexpr int NATIVE = 16, TILE = 8;
#elif defined(__AVX__)
constexpr int NATIVE = 8, TILE = 4;
#elif defined(__aarch64__)
constexpr int NATIVE = 4, TILE = 4;
#else
constexpr int NATIVE = 4, TILE = 2;
#endif
constexpr int L = 16;         // samples in a block
constexpr int64_t NEAR = 32;  // lower capsules whose weights stay in the second cache while the blocks pass

template <int N> struct Floats {
  static constexpr int W = N < NATIVE ? N : NATIVE, K = N / W;
  typedef float Vector __attribute__((vector_size(4 * W)));
  typedef float Anywhere __attribute__((vector_size(4 * W), aligned(4), may_alias));
  Vector v[K];

  static inline Floats load(const float *from) {
    Floats x;
    UNROLL for (int k = 0; k < K; ++k) x.v[k] = *reinterpret_cast<const Anywhere *>(from + k * W);
    return x;
  }
  static inline Floats all(float value) {
    Floats x;
    UNROLL for (int k = 0; k < K; ++k) x.v[k] = Vector{} + value;
    return x;
  }
  inline void store(float *to) const {
    UNROLL for (int k = 0; k < K; ++k) *reinterpret_cast<Anywhere *>(to + k * W) = v[k];
  }
  inline void add(const Floats &a, const Floats &b) {
    UNROLL for (int k = 0; k < K; ++k) v[k] += a.v[k] * b.v[k];
  }
  inline void add(float a, const Floats &b) {
    UNROLL for (int k = 0; k < K; ++k) v[k] += a * b.v[k];
  }
};

using Block = Floats<L>;

struct Sizes {
  int64_t B, I, J, P, D, T, chunks;
  int64_t blocks() const { return (B + L - 1) / L; }
  int64_t units() const { return blocks() * J; }  // a unit is one upper capsule of one block
  int64_t unit() const { return D * L; }
  int64_t above() const { return J * D * L; }
  int64_t lower() const { return P * L; }
  int64_t pairs() const { return blocks() * I * J * L; }
  int64_t vectors() const { return 2 * T - 1; }
  int64_t wide() const { return (D + 3) / 4 * 4; }
  int64_t start(int64_t chunk) const { return std::min(I, chunk * ((I + chunks - 1) / chunks)); }
  // a thread's own memory: votes, sums and factors of a pass, or what the last pass of the gradient needs.
  int64_t own() const { return 2 * above() + J * L + vectors() * L + lower(); }
};

// A thread and its helpers, who take pieces of what it does. Nobody waits for a helper that has taken none: where other threads
// keep the processors busy, one may come late or never, and has nothing to do then.
class Team {
 public:
  explicit Team(int64_t wanted) : work_(std::make_shared<Work>()) {
    try {
      for (int64_t rank = 1; rank < wanted; ++rank)
        std::thread([work = work_, rank] {
          while (!work->over.load())
            if (!work->help(rank)) std::this_thread::yield();
        }).detach();
    } catch (...) {
      // a system that gives fewer threads than asked for has the work done by those.
    }
  }
  ~Team() { work_->over.store(true); }
  Team(const Team &) = delete;

  // Do piece(rank, k) for every k below count, in any order; rank says who does it.
  template <class Piece> void each(int64_t count, const Piece &piece) {
    work_->count = count;
    work_->piece = &piece;
    work_->act = [](const void *any, int64_t rank, int64_t k) { (*static_cast<const Piece *>(any))(rank, k); };
    work_->done.store(0);
    work_->left.store(count);  // from here on pieces can be taken
    work_->help(0);
    while (work_->done.load() < count) std::this_thread::yield();
  }

 private:
  struct Work {
    std::atomic<int64_t> left{0}, done{0};
    std::atomic<bool> over{false};
    int64_t count = 0;
    const void *piece = nullptr;
    void (*act)(const void *, int64_t, int64_t) = nullptr;

    // Take pieces while there are any; whether there was one.
    bool help(int64_t rank) {
      bool helped = false;
      for (int64_t mine = left.load(); mine > 0;) {
        if (!left.compare_exchange_weak(mine, mine - 1)) continue;
        act(piece, rank, count - mine);
        done.fetch_add(1);
        helped = true;
        mine = left.load();
      }
      return helped;
    }
  };
  std::shared_ptr<Work> work_;  // a helper that comes late finds it still there
};

// e^x for x ≤ 0 to about one unit in the last place (Cephes' polynomial); zero where that is no normal number; NaN stays NaN.
inline Block exponential(Block x) {
  typedef int32_t Whole __attribute__((vector_size(4 * Block::W)));
  constexpr float least = -87.3f, shift = 12582912.0f;  // 1.5·2²³: what it is added to is rounded to a whole number
  UNROLL for (int k = 0; k < Block::K; ++k) {
    const auto given = x.v[k];
    const auto y = given < least ? Block::all(least).v[k] : given;
    const auto moved = y * 1.44269504f + shift;
    const auto n = moved - shift;
    const auto r = y - n * 0.693359375f - n * -2.12194440e-4f;
    auto p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    Whole bits;
    std::memcpy(&bits, &moved, sizeof bits);
    bits = (bits - 0x4B400000 + 127) << 23;
    Block::Vector power;
    std::memcpy(&power, &bits, sizeof bits);
    x.v[k] = given < least ? Block::Vector{} : p * power;
  }
  return x;
}

// logits [J, L] -> couplings, in place.
inline void softmax(int64_t J, float *x) {
  Block most = Block::load(x), sum = Block::all(0);
  for (int64_t j = 1; j < J; ++j) {
    const Block one = Block::load(x + j * L);
    UNROLL for (int k = 0; k < Block::K; ++k) most.v[k] = one.v[k] > most.v[k] ? one.v[k] : most.v[k];
  }
  for (int64_t j = 0; j < J; ++j) {
    Block one = Block::load(x + j * L);
    UNROLL for (int k = 0; k < Block::K; ++k) one.v[k] -= most.v[k];
    one = exponential(one);
    UNROLL for (int k = 0; k < Block::K; ++k) sum.v[k] += one.v[k];
    one.store(x + j * L);
  }
  UNROLL for (int k = 0; k < Block::K; ++k) sum.v[k] = 1.0f / sum.v[k];
  for (int64_t j = 0; j < J; ++j) {
    Block one = Block::load(x + j * L);
    UNROLL for (int k = 0; k < Block::K; ++k) one.v[k] *= sum.v[k];
    one.store(x + j * L);
  }
}

// dc [J, L] -> db = c (dc − Σ_k c_k dc_k), in place.
inline void softmax_gradient(int64_t J, const float *couplings, float *x) {
  Block mean = Block::all(0);
  for (int64_t j = 0; j < J; ++j) mean.add(Block::load(couplings + j * L), Block::load(x + j * L));
  for (int64_t j = 0; j < J; ++j) {
    const Block c = Block::load(couplings + j * L);
    Block one = Block::load(x + j * L);
    UNROLL for (int k = 0; k < Block::K; ++k) one.v[k] = c.v[k] * (one.v[k] - mean.v[k]);
    one.store(x + j * L);
  }
}

// v = g(n) s of one unit [D, L], g of SQUASHES[kind]; given ∂L/∂v, ∂L/∂s = g ∂L/∂v + g'(n)/n ⟨s, ∂L/∂v⟩ s.
void squash(int64_t D, int64_t kind, const float *s, const float *gradient, float *into) {
  float square[L] = {}, inner[L] = {}, scale[L], slope[L];
  for (int64_t d = 0; d < D; ++d)
    for (int l = 0; l < L; ++l) {
      square[l] += s[d * L + l] * s[d * L + l];
      if (gradient) inner[l] += s[d * L + l] * gradient[d * L + l];
    }
  for (int l = 0; l < L; ++l) {
    const float n = std::sqrt(square[l]), safe = n == 0 ? 1 : n, damped = 1 / (1 + n * n);
    const float rest = kind == 1 ? std::expm1(-safe) : 0;
    scale[l] = kind == 0 ? n * damped : kind == 1 && n != 0 ? -rest / safe : 1;
    slope[l] = kind == 0 ? (1 - n * n) * damped * damped : kind == 1 ? (rest + safe * (rest + 1)) / (safe * safe) : 0;
    slope[l] *= inner[l] / safe;
  }
  const float *base = gradient ? gradient : s;
  for (int64_t d = 0; d < D; ++d)
    for (int l = 0; l < L; ++l) {
      const int64_t k = d * L + l;
      into[k] = kind == 2 ? base[k] : gradient ? scale[l] * base[k] + slope[l] * s[k] : scale[l] * base[k];
    }
}

}  // namespace
