// The normal equations of an angle point by point in long double. They are what is compared with,
// and are compiled as any release is where the kernels have a sanitizer, which would take minutes
// of them.
#include <algorithm>
#include <cmath>

#include "xpcs_case.h"

namespace jaxkern::xpcs::testing {

Model model_of(const Case& c, int64_t i, int64_t j) {
  using Long = long double;
  const Long da = static_cast<Long>(c.a[i]) - c.a[j], dx = static_cast<Long>(c.x[i]) - c.x[j];
  const Long decay = std::exp(-2 * std::abs(da));
  Long sinc = 1, slope = 0;
  if (c.power != 0) {
    // Both by the Taylor series about 0 where the quotients would lose digits.
    if (std::abs(dx) < 0.3L) {
      Long term = 1;
      sinc = 1;
      for (int k = 1; k < 15; ++k) {
        slope += 2 * k * (term * -dx / (2 * k * (2 * k + 1)));
        term *= -dx * dx / (2 * k * (2 * k + 1));
        sinc += term;
      }
    } else {
      sinc = std::sin(dx) / dx;
      slope = (std::cos(dx) - sinc) / dx;
    }
  }
  const Long factor = c.power == 0 ? 1 : std::pow(sinc, static_cast<Long>(c.power));
  const Long f = decay * factor;
  const Long h =
      c.power == 0 ? 0 : decay * c.power * std::pow(sinc, static_cast<Long>(c.power - 1)) * slope;
  return {f, -2 * f * (da > 0 ? 1 : da < 0 ? -1 : 0), h};
}

void reference_state(const Case& c, std::vector<long double>* state,
                     std::vector<long double>* scale) {
  using Long = long double;
  const StateLayout& layout = c.layout;
  const int32_t basis = layout.basis();
  state->assign(layout.size(), 0);
  scale->assign(layout.size(), 0);
  const auto add = [&](int32_t at, Long value) {
    (*state)[at] += value;
    (*scale)[at] += std::abs(value);
  };
  std::vector<Long> column(basis);
  const auto sigma_at = [&](int64_t i, int64_t j) {
    return c.sigmas.empty() ? c.sigma : c.sigmas[(i - c.first_row) * c.n + j];
  };
  const auto same = [&](int64_t i, int64_t j) {  // as the kernel compares: by tile
    return c.matrix[i * c.n + j] == c.matrix[j * c.n + i] && sigma_at(i, j) == sigma_at(j, i);
  };
  for (int64_t i = c.first_row; i < c.first_row + c.rows; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      if (i == j || !c.keep[i] || !c.keep[j]) continue;
      if (c.symmetric == Symmetric::kYes && j < i) continue;
      const Long sigma = sigma_at(i, j);
      if (!(sigma > kLeastSigma)) continue;
      const Long multiplicity = c.symmetric == Symmetric::kYes ? 2 : 1;
      const Model m = model_of(c, i, j);
      const Long r = (c.matrix[i * c.n + j] - (c.offset + c.contrast * m.f)) / sigma;
      const Long z = (r / c.f_scale) * (r / c.f_scale);
      const LossValue loss = loss_value(c.loss, static_cast<double>(z));
      column[0] = 1;
      column[1] = m.f;
      for (int32_t k = 0; k < basis - 2; ++k) {
        const Long difference = static_cast<Long>(c.tables[k * c.n + i]) - c.tables[k * c.n + j];
        column[2 + k] = (k < layout.tables_a ? m.a : m.h) * difference;
      }
      const Long weight = multiplicity * loss.slope / (sigma * sigma);
      for (int32_t k = 0; k < basis; ++k) {
        for (int32_t l = k; l < basis; ++l) {
          add(layout.gram(k, l), weight * column[k] * column[l]);
        }
        add(layout.rhs(k), weight * column[k] * r * sigma);
      }
      add(layout.chi2(), multiplicity * r * r);
      add(layout.cost(), multiplicity * c.f_scale * c.f_scale * static_cast<Long>(loss.rho));
      add(layout.count(), multiplicity);
      const bool pair = c.symmetric == Symmetric::kAuto && same(std::min(i, j), std::max(i, j));
      if (c.symmetric == Symmetric::kYes || pair) add(layout.mirrored(), multiplicity);
    }
  }
}

}  // namespace jaxkern::xpcs::testing
