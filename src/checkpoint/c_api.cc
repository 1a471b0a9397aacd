#include <algorithm>
#include <cstring>
#include <exception>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/orrery_ckpt.h"
#include "checkpoint/safetensors.h"

using namespace orrery;
using namespace orrery::ckpt;

struct orrery_ckpt_writer {
  Writer writer;
};
struct orrery_ckpt_reader {
  Checkpoint checkpoint;
};

namespace {

// The C interface's one line for the last failure: there is no other place for it.
std::string& last_error() {
  thread_local std::string text;
  return text;
}

int failed(const Error& error) {
  last_error() = error.line();
  return ORRERY_CKPT_ERROR;
}
int failed(const char* what) { return failed(Error{what, {}, {}}); }

// No exception leaves through a C function.
template <class F>
int guarded(F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    return failed(e.what());
  }
}

Options options_of(const orrery_ckpt_options& c) {
  Options o;
  o.directory = c.directory == nullptr ? "" : c.directory;
  o.rank = c.rank;
  o.world = c.world;
  o.session = c.session == nullptr ? "" : c.session;
  o.keep_full = c.keep_full;
  o.keep_snapshot = c.keep_snapshot;
  o.when_busy = static_cast<WhenBusy>(c.when_busy);
  o.buffers = c.buffers;
  o.buffer_bytes = c.buffer_bytes;
  o.write_bytes_per_second = c.write_bytes_per_second;
  o.wait_timeout_s = c.wait_timeout_s;
  o.peer_timeout_s = c.peer_timeout_s;
  o.close_timeout_s = c.close_timeout_s;
  o.pin = c.pin != 0;
  o.read_back = c.read_back != 0;
  o.lock = c.lock != 0;
  return o;
}

Result<TensorView> view_of(const orrery_ckpt_tensor& c) {
  if (c.name == nullptr) return fail("a tensor's name is NULL");
  if (c.dtype < ORRERY_CKPT_BOOL || c.dtype > ORRERY_CKPT_F64) {
    return fail("its dtype is none of ORRERY_CKPT_BOOL to ORRERY_CKPT_F64", printable(c.name));
  }
  if (c.dims < 0) return fail("its dims is negative", printable(c.name));
  if (c.dims > ORRERY_CKPT_MAX_DIMS) return fail("has more than eight dimensions", printable(c.name));
  if (c.place != ORRERY_CKPT_HOST && c.place != ORRERY_CKPT_CUDA) {
    return fail("its place is neither ORRERY_CKPT_HOST nor ORRERY_CKPT_CUDA", printable(c.name));
  }
  TensorView t;
  t.name = c.name;
  t.dtype = static_cast<DType>(c.dtype);
  t.shape.assign(c.shape, c.shape + c.dims);
  t.data = c.data;
  t.place = static_cast<Place>(c.place);
  t.split_dim = c.split_dim;
  t.offset = c.offset;
  t.whole = c.whole;
  return t;
}

// What save() is given, as C++ has it.
struct Arguments {
  std::vector<TensorView> tensors;
  Metadata metadata;
};
Result<Arguments> arguments_of(int32_t slot, const orrery_ckpt_tensor* tensors, size_t count,
                               const char* const* metadata, size_t pairs) {
  if (slot != ORRERY_CKPT_FULL && slot != ORRERY_CKPT_SNAPSHOT) {
    return fail("the slot is neither ORRERY_CKPT_FULL nor ORRERY_CKPT_SNAPSHOT");
  }
  if (tensors == nullptr && count > 0) return fail("tensors is NULL");
  if (metadata == nullptr && pairs > 0) return fail("metadata is NULL");
  Arguments a;
  a.tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    auto t = view_of(tensors[i]);
    if (!t) return tl::unexpected(t.error());
    a.tensors.push_back(std::move(*t));
  }
  for (size_t i = 0; i < pairs; ++i) {
    if (metadata[2 * i] == nullptr || metadata[2 * i + 1] == nullptr) return fail("a text of the metadata is NULL");
    if (!a.metadata.emplace(metadata[2 * i], metadata[2 * i + 1]).second) {
      return fail("a key of the metadata stands twice", printable(metadata[2 * i]));
    }
  }
  return a;
}

// Callers that were compiled with a shorter struct get as much as they know of.
template <class T>
bool take(const T* from, T& into) {
  if (from == nullptr || from->struct_size < sizeof(std::size_t)) return false;
  std::memcpy(&into, from, std::min(from->struct_size, sizeof(T)));
  return true;
}

const std::pair<const std::string, std::string>* metadata_at(const orrery_ckpt_reader* r, std::size_t index) {
  if (r == nullptr) return nullptr;
  const Metadata& m = r->checkpoint.metadata();
  if (index >= m.size()) return nullptr;
  return &*std::next(m.begin(), static_cast<std::ptrdiff_t>(index));
}

}  // namespace

extern "C" {

const char* orrery_ckpt_last_error(void) { return last_error().c_str(); }

void orrery_ckpt_options_init(orrery_ckpt_options* out) {
  if (out == nullptr) return;  // open() then says that there are no options
  const Options o;
  *out = {};
  out->struct_size = sizeof(*out);
  out->world = o.world;
  out->keep_full = o.keep_full;
  out->keep_snapshot = o.keep_snapshot;
  out->when_busy = static_cast<int32_t>(o.when_busy);
  out->buffers = o.buffers;
  out->wait_timeout_s = o.wait_timeout_s;
  out->peer_timeout_s = o.peer_timeout_s;
  out->close_timeout_s = o.close_timeout_s;
  out->pin = out->read_back = out->lock = 1;
}

int orrery_ckpt_open(const orrery_ckpt_options* options, orrery_ckpt_writer** out) {
  return guarded([&] {
    orrery_ckpt_options c;
    orrery_ckpt_options_init(&c);
    if (out == nullptr) return failed("out is NULL: there is no place for the writer");
    if (options == nullptr) return failed("options is NULL: fill them with orrery_ckpt_options_init");
    if (!take(options, c)) return failed("struct_size of options is not set: fill them with orrery_ckpt_options_init");
    if (c.when_busy < ORRERY_CKPT_WAIT || c.when_busy > ORRERY_CKPT_DROP) {
      return failed("when_busy is none of ORRERY_CKPT_WAIT, ORRERY_CKPT_SKIP and ORRERY_CKPT_DROP");
    }
    auto w = Writer::open(options_of(c));
    if (!w) return failed(w.error());
    *out = new orrery_ckpt_writer{std::move(*w)};
    return static_cast<int>(ORRERY_CKPT_OK);
  });
}

int orrery_ckpt_save(orrery_ckpt_writer* writer, int64_t step, int32_t slot, const orrery_ckpt_tensor* tensors,
                     size_t count, const char* const* metadata, size_t pairs, int32_t* outcome) {
  return guarded([&] {
    if (writer == nullptr) return failed("the writer is NULL");
    const auto refused = [&](const std::string& why) {
      const Slot named = slot == ORRERY_CKPT_SNAPSHOT ? Slot::snapshot : Slot::full;
      return failed(writer->writer.refuse(step, named, why).error());
    };
    Arguments arguments;
    try {
      auto a = arguments_of(slot, tensors, count, metadata, pairs);
      if (!a) return refused(a.error().line());
      arguments = std::move(*a);
    } catch (const std::exception& e) {
      return refused(e.what());
    }
    const auto done = writer->writer.save(step, static_cast<Slot>(slot), arguments.tensors, arguments.metadata);
    if (!done) return failed(done.error());
    if (outcome != nullptr) *outcome = static_cast<int32_t>(*done);
    return static_cast<int>(ORRERY_CKPT_OK);
  });
}

int orrery_ckpt_refuse(orrery_ckpt_writer* writer, int64_t step, int32_t slot, const char* why) {
  return guarded([&] {
    if (writer == nullptr) return failed("the writer is NULL");
    const Slot named = slot == ORRERY_CKPT_SNAPSHOT ? Slot::snapshot : Slot::full;
    return failed(writer->writer.refuse(step, named, why == nullptr ? "" : why).error());
  });
}

void orrery_ckpt_hurry(orrery_ckpt_writer* writer, double within_s) {
  if (writer != nullptr) writer->writer.hurry(within_s);
}

int orrery_ckpt_wait(orrery_ckpt_writer* writer, double timeout_s) {
  return guarded([&] {
    if (writer == nullptr) return failed("the writer is NULL");
    const auto ok = writer->writer.wait(timeout_s);
    return ok ? static_cast<int>(ORRERY_CKPT_OK) : failed(ok.error());
  });
}

int orrery_ckpt_get_stats(orrery_ckpt_writer* writer, orrery_ckpt_stats* out) {
  return guarded([&] {
    if (writer == nullptr) return failed("the writer is NULL");
    if (out == nullptr) return failed("stats is NULL");
    if (out->struct_size < sizeof(std::size_t)) return failed("struct_size of stats is not set");
    const Stats s = writer->writer.stats();
    orrery_ckpt_stats c{};
    c.struct_size = out->struct_size;
    c.saves = s.saves, c.accepted = s.accepted, c.skipped = s.skipped, c.dropped = s.dropped;
    c.written = s.written, c.failed = s.failed, c.committed = s.committed, c.abandoned = s.abandoned;
    c.removed = s.removed, c.bytes_copied = s.bytes_copied, c.bytes_written = s.bytes_written;
    c.blocked_ns = s.blocked_ns, c.blocked_max_ns = s.blocked_max_ns, c.blocked_last_ns = s.blocked_last_ns;
    c.waited_ns = s.waited_ns, c.write_ns = s.write_ns, c.write_last_ns = s.write_last_ns;
    c.buffer_growths = s.buffer_growths, c.oldest_unwritten_ns = s.oldest_unwritten_ns;
    c.committed_step = s.committed_step, c.pinned = s.pinned ? 1 : 0;
    c.refused = s.refused;
    std::memcpy(out, &c, std::min(out->struct_size, sizeof(c)));
    return static_cast<int>(ORRERY_CKPT_OK);
  });
}

int orrery_ckpt_close_within(orrery_ckpt_writer* writer, double timeout_s) {
  return guarded([&] {
    if (writer == nullptr) return static_cast<int>(ORRERY_CKPT_OK);
    const std::unique_ptr<orrery_ckpt_writer> owned(writer);
    const auto ok = owned->writer.close(timeout_s);
    return ok ? static_cast<int>(ORRERY_CKPT_OK) : failed(ok.error());
  });
}

int orrery_ckpt_close(orrery_ckpt_writer* writer) {
  return guarded([&] {
    if (writer == nullptr) return static_cast<int>(ORRERY_CKPT_OK);
    const std::unique_ptr<orrery_ckpt_writer> owned(writer);
    const auto ok = owned->writer.close();
    return ok ? static_cast<int>(ORRERY_CKPT_OK) : failed(ok.error());
  });
}

int orrery_ckpt_newest_good(const char* directory, int32_t slots, orrery_ckpt_reader** out) {
  return guarded([&] {
    if (directory == nullptr) return failed("directory is NULL");
    if (out == nullptr) return failed("out is NULL: there is no place for the checkpoint");
    if (slots < 1 || slots > 3) return failed("slots is none of 1 (full), 2 (snapshots) and 3 (both)");
    auto c = Checkpoint::newest_good(directory, (slots & 1) != 0, (slots & 2) != 0);
    if (!c) return failed(c.error());
    if (!*c) return static_cast<int>(ORRERY_CKPT_NONE);
    *out = new orrery_ckpt_reader{std::move(**c)};
    return static_cast<int>(ORRERY_CKPT_OK);
  });
}

int orrery_ckpt_open_id(const char* directory, const char* id, orrery_ckpt_reader** out) {
  return guarded([&] {
    if (directory == nullptr) return failed("directory is NULL");
    if (id == nullptr) return failed("id is NULL");
    if (out == nullptr) return failed("out is NULL: there is no place for the checkpoint");
    auto c = Checkpoint::open(directory, id);
    if (!c) return failed(c.error());
    *out = new orrery_ckpt_reader{std::move(*c)};
    return static_cast<int>(ORRERY_CKPT_OK);
  });
}

int orrery_ckpt_withdraw_after(const char* directory, const char* id) {
  return guarded([&] {
    if (directory == nullptr) return failed("directory is NULL");
    if (id == nullptr) return failed("id is NULL");
    const auto n = withdraw_after(directory, id);
    return n ? static_cast<int>(ORRERY_CKPT_OK) : failed(n.error());
  });
}

void orrery_ckpt_reader_free(orrery_ckpt_reader* reader) { delete reader; }
int64_t orrery_ckpt_step(const orrery_ckpt_reader* r) { return r == nullptr ? -1 : r->checkpoint.step(); }
int32_t orrery_ckpt_slot(const orrery_ckpt_reader* r) {
  return r == nullptr ? -1 : static_cast<int32_t>(r->checkpoint.slot());
}
int32_t orrery_ckpt_world(const orrery_ckpt_reader* r) { return r == nullptr ? 0 : r->checkpoint.world(); }
const char* orrery_ckpt_id(const orrery_ckpt_reader* r) { return r == nullptr ? nullptr : r->checkpoint.id().c_str(); }
size_t orrery_ckpt_rejected_count(const orrery_ckpt_reader* r) {
  return r == nullptr ? 0 : r->checkpoint.rejected().size();
}
const char* orrery_ckpt_rejected(const orrery_ckpt_reader* r, size_t i) {
  return i < orrery_ckpt_rejected_count(r) ? r->checkpoint.rejected()[i].c_str() : nullptr;
}
size_t orrery_ckpt_metadata_count(const orrery_ckpt_reader* r) {
  return r == nullptr ? 0 : r->checkpoint.metadata().size();
}
const char* orrery_ckpt_metadata_key(const orrery_ckpt_reader* r, size_t i) {
  const auto* pair = metadata_at(r, i);
  return pair == nullptr ? nullptr : pair->first.c_str();
}
const char* orrery_ckpt_metadata_value(const orrery_ckpt_reader* r, size_t i) {
  const auto* pair = metadata_at(r, i);
  return pair == nullptr ? nullptr : pair->second.c_str();
}
size_t orrery_ckpt_tensor_count(const orrery_ckpt_reader* r) {
  return r == nullptr ? 0 : r->checkpoint.tensors().size();
}

int orrery_ckpt_tensor_info(const orrery_ckpt_reader* r, size_t index, orrery_ckpt_tensor* out) {
  return guarded([&] {
    if (r == nullptr) return failed("the reader is NULL");
    if (out == nullptr) return failed("out is NULL: there is no place for the tensor");
    if (index >= r->checkpoint.tensors().size()) return failed("index is not below orrery_ckpt_tensor_count");
    const TensorInfo& t = r->checkpoint.tensors()[index];
    *out = {};
    out->name = t.name.c_str();
    out->dtype = static_cast<int32_t>(t.dtype);
    out->dims = static_cast<int32_t>(t.shape.size());
    out->split_dim = t.split_dim;
    std::copy(t.shape.begin(), t.shape.end(), out->shape);
    if (t.split_dim >= 0) out->whole = t.shape[static_cast<std::size_t>(t.split_dim)];
    return static_cast<int>(ORRERY_CKPT_OK);
  });
}

int orrery_ckpt_verify(const orrery_ckpt_reader* r, int32_t part, int32_t parts) {
  return guarded([&] {
    if (r == nullptr) return failed("the reader is NULL");
    const auto ok = r->checkpoint.verify(part, parts);
    return ok ? static_cast<int>(ORRERY_CKPT_OK) : failed(ok.error());
  });
}

int orrery_ckpt_read(const orrery_ckpt_reader* r, const char* name, const int64_t* begin, const int64_t* shape,
                     int32_t dims, void* out, uint64_t bytes) {
  return guarded([&] {
    if (r == nullptr) return failed("the reader is NULL");
    if (name == nullptr) return failed("name is NULL");
    const TensorInfo* info = r->checkpoint.find(name);
    if (info == nullptr) return failed(Error{"no such tensor", printable(name), {}});
    if (dims < 0 || static_cast<std::size_t>(dims) != info->shape.size()) {
      return failed(Error{"asked for with another number of dimensions than it has", name, {}});
    }
    if (dims > 0 && (begin == nullptr || shape == nullptr)) return failed("begin or shape is NULL");
    const auto n = static_cast<std::size_t>(dims);
    const auto box = tensor_bytes(info->dtype, {shape, shape + n});
    if (!box) return failed(Error{box.error().what, name, {}});
    if (*box != bytes) return failed(Error{"the room given is not the size of what is asked for", name, {}});
    if (out == nullptr && bytes > 0) return failed("out is NULL: there is no place for the tensor");
    const auto ok = r->checkpoint.read(name, {begin, n}, {shape, n}, out);
    return ok ? static_cast<int>(ORRERY_CKPT_OK) : failed(ok.error());
  });
}

}  // extern "C"
