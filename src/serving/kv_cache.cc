#include "serving/kv_cache.h"

#include <cassert>

namespace orrery {

void KvCache::take(std::int64_t n) {
  assert(available() >= n);
  taken_ += n;
  while (taken_ + static_cast<std::int64_t>(pieces_.size()) * piece_blocks_ > blocks_ && !idle_.empty()) {
    pieces_.erase(idle_.front());
    idle_.pop_front();
  }
}

std::size_t KvCache::match(std::span<const std::uint64_t> prefix) const {
  std::size_t n = 0;
  while (n < prefix.size() && pieces_.contains(prefix[n])) ++n;
  return n;
}

void KvCache::use(std::span<const std::uint64_t> pieces) {
  for (const std::uint64_t id : pieces) begin_use(pieces_.at(id));
}

void KvCache::keep(std::span<const std::uint64_t> pieces) {
  for (const std::uint64_t id : pieces) {
    taken_ -= piece_blocks_;
    const auto [it, added] = pieces_.try_emplace(id);
    if (added)
      it->second.users = 1;
    else
      begin_use(it->second);
  }
}

void KvCache::drop(std::span<const std::uint64_t> pieces) {
  // The last pieces go first: what is left of a prefix is its begin.
  for (std::size_t k = pieces.size(); k-- > 0;) {
    Piece& piece = pieces_.at(pieces[k]);
    if (--piece.users == 0) piece.idle = idle_.insert(idle_.end(), pieces[k]);
  }
}

}  // namespace orrery
