#include "base/string_pool.h"

#include <algorithm>
#include <cstring>

namespace orrery {
namespace {

// wyhash-like mixing of eight bytes at a time; the pool is private, so only speed and spread matter.
std::uint64_t hash_bytes(std::string_view s) {
  const char* p = s.data();
  std::size_t n = s.size();
  std::uint64_t h = 0x9e3779b97f4a7c15ull ^ n;
  auto mix = [&h](std::uint64_t v) {
    const auto m = static_cast<unsigned __int128>(h ^ v) * 0xa0761d6478bd642full;
    h = static_cast<std::uint64_t>(m) ^ static_cast<std::uint64_t>(m >> 64);
  };
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t v;
    std::memcpy(&v, p, 8);
    mix(v);
  }
  std::uint64_t v = 0;
  if (n != 0) std::memcpy(&v, p, n);
  mix(v ^ 0xe7037ed1a0b428dbull);
  return h;
}

constexpr std::size_t kFirstBlock = 512, kBlock = 64 * 1024;  // each twice as long as the one before

}  // namespace

StringPool::StringPool() : slots_(256, 0) {
  views_.emplace_back();
  hashes_.push_back(hash_bytes({}));
  slots_[hashes_[0] & (slots_.size() - 1)] = 1;
}

StrId StringPool::find(std::string_view s) const {
  const std::uint64_t h = hash_bytes(s);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = h & mask;; i = (i + 1) & mask) {
    if (slots_[i] == 0) return StrId{kNone};
    const std::uint32_t id = slots_[i] - 1;
    if (hashes_[id] == h && views_[id] == s) return StrId{id};
  }
}

StrId StringPool::intern(std::string_view s) {
  const std::uint64_t h = hash_bytes(s);
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = h & mask;
  for (; slots_[i] != 0; i = (i + 1) & mask) {
    const std::uint32_t id = slots_[i] - 1;
    if (hashes_[id] == h && views_[id] == s) return StrId{id};
  }
  if (blocks_.empty() || used_ + s.size() > blocks_.back().size()) {
    blocks_.emplace_back(std::max(std::min(kFirstBlock << std::min<std::size_t>(blocks_.size(), 7), kBlock), s.size()));
    used_ = 0;
  }
  char* to = blocks_.back().data() + used_;
  if (!s.empty()) std::memcpy(to, s.data(), s.size());
  used_ += s.size();
  const auto id = static_cast<std::uint32_t>(views_.size());
  views_.emplace_back(to, s.size());
  hashes_.push_back(h);
  slots_[i] = id + 1;
  if (views_.size() * 2 > slots_.size()) grow();
  return StrId{id};
}

void StringPool::grow() {
  slots_.assign(slots_.size() * 2, 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::uint32_t id = 0; id < views_.size(); ++id) {
    std::size_t i = hashes_[id] & mask;
    while (slots_[i] != 0) i = (i + 1) & mask;
    slots_[i] = id + 1;
  }
}

std::size_t StringPool::bytes() const {
  std::size_t n = views_.size() * (sizeof(std::string_view) + sizeof(std::uint64_t)) + slots_.size() * 4;
  for (const auto& b : blocks_) n += b.size();
  return n;
}

}  // namespace orrery
