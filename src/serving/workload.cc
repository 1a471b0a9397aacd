#include "serving/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/number_text.h"

namespace orrery {
namespace {

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

// Mean of exp(N(mu, sigma)) kept to [least, most] by drawing again.
double truncated_lognormal_mean(double mu, double sigma, double least, double most) {
  const double a = (std::log(least) - mu) / sigma, b = (std::log(most) - mu) / sigma;
  const double mass = normal_cdf(b) - normal_cdf(a);
  if (mass < 1e-12) return mu < std::log(least) ? least : most;
  return std::exp(mu + sigma * sigma / 2) * (normal_cdf(b - sigma) - normal_cdf(a - sigma)) / mass;
}
double truncated_exponential_mean(double scale, double least, double most) {
  const double width = most - least, r = width / scale;
  return r > 50 ? least + scale : least + scale - width / std::expm1(r);
}

// The argument at which a growing function takes `value`.
template <class F>
double inverse(const F& f, double low, double high, double value) {
  for (int i = 0; i < 200; ++i) {
    const double mid = (low + high) / 2;
    (f(mid) < value ? low : high) = mid;
  }
  return (low + high) / 2;
}

// Draws lengths of one distribution; what its parameters are for the mean asked is found once.
class Lengths {
 public:
  explicit Lengths(const LengthDistribution& d) : d_(d) {
    if (d.kind == LengthKind::lognormal)
      parameter_ =
          inverse([&](double mu) { return truncated_lognormal_mean(mu, d.sigma, d.least, d.most); }, -20, 40, d.mean);
    if (d.kind == LengthKind::exponential)
      parameter_ =
          inverse([&](double scale) { return truncated_exponential_mean(scale, d.least, d.most); }, 1e-3, 1e9, d.mean);
  }
  std::int64_t draw(Random& random) const {
    double x = d_.mean;
    switch (d_.kind) {
      case LengthKind::fixed:
        break;
      case LengthKind::uniform:
        x = d_.least + std::floor((d_.most - d_.least + 1) * random.uniform());
        break;
      case LengthKind::lognormal:
        for (int i = 0; i < 1000; ++i)
          if (x = std::exp(parameter_ + d_.sigma * random.normal()); x >= d_.least && x <= d_.most) break;
        break;
      case LengthKind::exponential: {
        const double u = -std::expm1(-(d_.most - d_.least) / parameter_) * random.uniform();
        x = d_.least - parameter_ * std::log1p(-u);
        break;
      }
    }
    return static_cast<std::int64_t>(std::llround(std::clamp(x, d_.least, d_.most)));
  }

 private:
  LengthDistribution d_;
  double parameter_ = 0;
};

std::uint64_t rotated(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

}  // namespace

Random::Random(std::uint64_t seed) {
  for (std::uint64_t& s : s_) {
    seed += 0x9e3779b97f4a7c15u;
    std::uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    s = z ^ (z >> 31);
  }
}

std::uint64_t Random::next() {
  const std::uint64_t result = rotated(s_[1] * 5, 7) * 9, t = s_[1] << 17;
  s_[2] ^= s_[0];
  s_[3] ^= s_[1];
  s_[1] ^= s_[2];
  s_[0] ^= s_[3];
  s_[2] ^= t;
  s_[3] = rotated(s_[3], 45);
  return result;
}

double Random::uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1.0p-53; }

double Random::normal() {  // Box and Muller
  const double u = uniform(), v = uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

double Random::gamma(double shape) {  // Marsaglia and Tsang
  if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

Result<LengthDistribution> read_length_distribution(const std::string& text, const std::string& where) {
  const std::string advice = "N, uniform:A,B, lognormal:MEAN[,SIGMA[,LEAST[,MOST]]] or exponential:MEAN[,LEAST[,MOST]]";
  std::string shown = text.substr(0, 64);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < ' '; }, ' ');
  const std::size_t colon = text.find(':');
  const std::string word = colon == std::string::npos ? "fixed" : text.substr(0, colon);
  std::string rest = colon == std::string::npos ? text : text.substr(colon + 1);
  std::replace(rest.begin(), rest.end(), ':', ',');
  LengthDistribution d;
  std::vector<double*> places;
  if (word == "fixed") {
    places = {&d.mean};
  } else if (word == "uniform") {
    d.kind = LengthKind::uniform, places = {&d.least, &d.most};
  } else if (word == "lognormal") {
    d.kind = LengthKind::lognormal, places = {&d.mean, &d.sigma, &d.least, &d.most};
  } else if (word == "exponential") {
    d.kind = LengthKind::exponential, places = {&d.mean, &d.least, &d.most};
  } else {
    return fail("not known: " + shown, where, advice);
  }
  const auto named = [&](const std::string& name) -> double* {
    if (name == "mean") return &d.mean;
    if (name == "sigma") return &d.sigma;
    if (name == "min" || name == "least") return &d.least;
    if (name == "max" || name == "most") return &d.most;
    return nullptr;
  };
  std::size_t given = 0;
  for (std::size_t i = 0; i <= rest.size();) {
    const std::size_t end = std::min(rest.find(',', i), rest.size());
    std::string item = rest.substr(i, end - i);
    i = end + 1;
    double* place = nullptr;
    if (const std::size_t equals = item.find('='); equals != std::string::npos) {
      place = named(item.substr(0, equals));
      item.erase(0, equals + 1);
    } else if (given < places.size()) {
      place = places[given];
    }
    if (place == nullptr || read_double(item, *place) != NumberState::ok)
      return fail("not a distribution of lengths: " + shown, where, advice);
    ++given;
  }
  if (d.kind == LengthKind::uniform) {
    if (given < 2) return fail("not a distribution of lengths: " + shown, where, advice);
    d.mean = (d.least + d.most) / 2;
  }
  if (d.kind == LengthKind::fixed) d.most = std::max(d.most, d.mean);
  if (!(d.least >= 1 && d.least <= d.most && d.most <= 1 << 24 && d.mean >= 1 && d.sigma > 0 && d.sigma <= 10))
    return fail("lengths are 1 to 16777216 tokens, the least not above the most: " + shown, where, advice);
  if (d.kind != LengthKind::fixed && d.kind != LengthKind::uniform && (d.mean <= d.least || d.mean >= d.most))
    return fail("the mean is not between the least and the most: " + shown, where, advice);
  return d;
}

void set_arrivals(Workload& w, double rate, double cv, std::uint64_t seed) {
  Random random(seed ^ 0xa5a5a5a5a5a5a5a5u);  // apart from the lengths: they stay when the rate changes
  double at = 0;
  w.timed = rate > 0;
  for (Request& r : w.requests) {
    r.arrival_ns = at;
    if (rate <= 0) continue;
    double gap = 1;
    if (cv > 0) {
      const double shape = 1 / (cv * cv);
      gap = random.gamma(shape) / shape;
    }
    at += gap * 1e9 / rate;
  }
}

Workload made_workload(const WorkloadAsked& asked) {
  Workload w;
  Random random(asked.seed);
  const Lengths inputs(asked.input), outputs(asked.output);
  w.requests.resize(static_cast<std::size_t>(asked.requests));
  for (Request& r : w.requests) {
    r.input = inputs.draw(random);
    r.output = outputs.draw(random);
  }
  if (asked.shared_prefix > 0) {
    for (std::int64_t k = 0; k * w.prefix_piece < asked.shared_prefix; ++k)
      w.prefixes.push_back(static_cast<std::uint64_t>(k) + 1);
    for (Request& r : w.requests)
      r.prefixes = static_cast<std::uint32_t>(std::min(asked.shared_prefix, r.input) / w.prefix_piece);
  }
  set_arrivals(w, asked.rate, asked.cv, asked.seed);
  return w;
}

}  // namespace orrery
