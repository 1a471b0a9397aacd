// Blocks of a KV cache: taken by sequences, and kept for prompts that begin alike until somebody needs the room.
#pragma once
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

namespace orrery {

class KvCache {
 public:
  // `piece_blocks`: blocks of one piece of a prefix.
  KvCache(std::int64_t blocks, std::int64_t piece_blocks) : blocks_(blocks), piece_blocks_(piece_blocks) {}

  std::int64_t blocks() const { return blocks_; }
  std::int64_t used() const {
    return taken_ + (static_cast<std::int64_t>(pieces_.size()) - idle_count()) * piece_blocks_;
  }
  // What can be taken: free blocks, and those of prefixes that nobody uses now.
  std::int64_t available() const { return blocks_ - used(); }
  // Evicts idle prefixes, the least recently used first. Precondition: available() >= n.
  void take(std::int64_t n);
  void give(std::int64_t n) { taken_ -= n; }

  // Leading pieces that are there.
  std::size_t match(std::span<const std::uint64_t> prefix) const;
  // Uses the first pieces, which match() found; until drop().
  void use(std::span<const std::uint64_t> pieces);
  // Blocks that were taken become pieces in use. Pieces that are there already give theirs back.
  void keep(std::span<const std::uint64_t> pieces);
  void drop(std::span<const std::uint64_t> pieces);
  std::int64_t piece_blocks() const { return piece_blocks_; }

 private:
  struct Piece {
    std::int64_t users = 0;
    std::list<std::uint64_t>::iterator idle;  // where users is 0
  };
  std::int64_t idle_count() const { return static_cast<std::int64_t>(idle_.size()); }
  void begin_use(Piece& piece) {
    if (piece.users++ == 0) idle_.erase(piece.idle);
  }

  std::int64_t blocks_, piece_blocks_, taken_ = 0;
  std::unordered_map<std::uint64_t, Piece> pieces_;
  std::list<std::uint64_t> idle_;  // the least recently used first
};

}  // namespace orrery
