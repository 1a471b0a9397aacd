#include "checkpoint/shard_writer.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "checkpoint/safetensors.h"

namespace orrery::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

// Pieces of a file at no more than so many bytes a second.
class Throttle {
 public:
  explicit Throttle(std::uint64_t bytes_per_second) : rate_(bytes_per_second), next_(Clock::now()) {}
  std::uint64_t piece() const {
    constexpr std::uint64_t most = std::uint64_t{4} << 20;
    return rate_ == 0 ? most : std::clamp<std::uint64_t>(rate_ / 20, 4096, most);
  }
  void after(std::uint64_t bytes, const std::atomic<bool>& stop) {
    if (rate_ == 0) return;
    next_ += std::chrono::nanoseconds(bytes * 1'000'000'000 / rate_);
    while (!stop && Clock::now() < next_) {
      std::this_thread::sleep_until(std::min(next_, Clock::now() + std::chrono::milliseconds(50)));
    }
  }

 private:
  std::uint64_t rate_;
  Clock::time_point next_;
};

Result<ShardRecord> describe(const ShardJob& job, std::string& header) {
  SafetensorsHeader h;
  h.metadata = {{"format", "pt"},  // readers of models look for it
                {"orrery.step", std::to_string(job.attempt.step)},
                {"orrery.rank", std::to_string(job.rank)},
                {"orrery.world", std::to_string(job.attempt.world)}};
  for (const TensorRecord& t : job.tensors) h.tensors.push_back({t.name, t.dtype, t.shape, t.begin, t.end});
  auto text = write_safetensors_header(h);
  if (!text) return tl::unexpected(text.error());
  header = std::move(*text);
  ShardRecord s;
  s.rank = job.rank;
  s.header_bytes = header.size();
  s.bytes = header.size() + job.bytes;
  s.header_crc32c = crc32c(header.data(), header.size());
  s.tensors = job.tensors;
  for (TensorRecord& t : s.tensors) t.crc32c = crc32c(job.data + t.begin, t.end - t.begin);
  return s;
}

Status write_file(const Directory& dir, const std::string& name, const ShardJob& job, const std::string& header,
                  std::uint64_t bytes_per_second, const std::atomic<bool>& stop) {
  const auto fd = dir.create(name);
  if (!fd) return tl::unexpected(fd.error());
  if (auto ok = dir.allocate(fd->get(), name, header.size() + job.bytes); !ok) return ok;
  Throttle throttle(bytes_per_second);
  if (auto ok = dir.write(fd->get(), name, header.data(), header.size()); !ok) return ok;
  throttle.after(header.size(), stop);
  for (std::uint64_t at = 0; at < job.bytes;) {
    if (stop) return fail("closed before it was written", dir.path() + "/" + name);
    const std::uint64_t n = std::min(throttle.piece(), job.bytes - at);
    if (auto ok = dir.write(fd->get(), name, job.data + at, n); !ok) return ok;
    at += n;
    throttle.after(n, stop);
  }
  if (stop) return fail("closed before it was written", dir.path() + "/" + name);
  return dir.sync_file(fd->get(), name);
}

}  // namespace

Result<std::uint64_t> write_shard(const Directory& root, const ShardJob& job, bool read_back,
                                  std::uint64_t bytes_per_second, const std::atomic<bool>& stop) {
  Receipt receipt{job.attempt, {}, {}, job.metadata};
  std::string header;
  auto shard = describe(job, header);
  if (!shard) return tl::unexpected(shard.error());
  receipt.shard = std::move(*shard);
  const auto dir = root.inside(directory_name(job.attempt), true);
  if (!dir) return tl::unexpected(dir.error());
  const std::string name = shard_name(job.rank), partial = name + ".partial";
  const auto written = [&]() -> Status {
    if (auto ok = write_file(*dir, partial, job, header, bytes_per_second, stop); !ok) return ok;
    if (auto ok = dir->rename(partial, name); !ok) return ok;
    if (!read_back) return {};
    if (auto ok = verify_shard(*dir, receipt.shard, true); !ok) return tl::unexpected(ok.error());
    return {};
  }();
  if (!written) {  // room for others
    (void)dir->unlink(partial);
    (void)dir->unlink(name);
    return tl::unexpected(written.error());
  }
  const auto text = to_text(receipt);
  if (!text) return tl::unexpected(text.error());
  if (auto ok = dir->write_durably(receipt_name(job.rank), *text); !ok) {
    (void)dir->unlink(receipt_name(job.rank));
    return tl::unexpected(ok.error());
  }
  return receipt.shard.bytes;
}

Status write_refusal(const Directory& root, const Attempt& attempt, int rank, const std::string& why) {
  const auto dir = root.inside(directory_name(attempt), true);
  if (!dir) return tl::unexpected(dir.error());
  Receipt receipt{attempt, printable(why), {}, {}};  // a path in it may be anything
  receipt.shard.rank = rank;
  const auto text = to_text(receipt);
  if (!text) return tl::unexpected(text.error());
  return dir->write_durably(receipt_name(rank), *text);
}

}  // namespace orrery::ckpt
