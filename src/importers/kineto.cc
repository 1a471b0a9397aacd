#include "importers/kineto.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/json_text.h"
#include "importers/kineto_events.h"

namespace orrery {
namespace {

constexpr std::uint64_t kGuessAfter = 7;  // windows
constexpr double kLargestGuess = 4096;

// Windows are filled one after the other, parsed side by side and appended in file order. Every thread does all three:
// it takes its turn at the source, parses what it got, and appends whatever is next in order.
class Pipeline {
 public:
  Pipeline(TraceText& text, ByteSource& source, RankBuilder& builder, const KinetoOptions& options)
      : text_(text), source_(source), builder_(builder), options_(options) {}

  void run() {
    const unsigned threads = std::max(1u, options_.threads);
    const unsigned blocks = threads == 1 ? 1 : 2 * threads;
    for (unsigned i = 0; i < blocks; ++i) free_.push_back(std::make_unique<RowBlock>());
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back([this] { work(nullptr); });
    work(options_.tokens);
    for (std::thread& t : others) t.join();
  }

  // The first error in file order; empty = none.
  std::optional<TextError> error;

 private:
  void work(JsonTokens* tokens) {
    EventParser parser(tokens);
    for (;;) {
      std::unique_ptr<RowBlock> block = take_free();
      if (!block) return;
      if (!fill(*block)) {
        give_back(std::move(block));
        return;
      }
      if (auto bad = parser.parse(*block)) stop(std::move(*bad));
      append_in_order(std::move(block));
    }
  }

  std::unique_ptr<RowBlock> take_free() {
    std::unique_lock lock(mutex_);
    some_free_.wait(lock, [&] { return !free_.empty() || ended_; });
    if (ended_) return {};
    auto block = std::move(free_.back());
    free_.pop_back();
    return block;
  }

  void give_back(std::unique_ptr<RowBlock> block) {
    {
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(block));
    }
    some_free_.notify_one();
  }

  bool fill(RowBlock& block) {
    const std::lock_guard reading(source_mutex_);
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return false;
    }
    const auto next = text_.next(block.window);
    block.taken = source_.taken();
    if (options_.progress) options_.progress(block.taken);
    if (next == TraceText::Next::window) return true;
    if (next == TraceText::Next::error && !text_.read_error()) stop(text_.error());
    end();
    return false;
  }

  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    some_free_.notify_all();
  }

  void stop(TextError e) {
    {
      const std::lock_guard lock(mutex_);
      if (!error || e.offset < error->offset) error = std::move(e);
    }
    end();
  }

  void append_in_order(std::unique_ptr<RowBlock> block) {
    std::unique_lock lock(mutex_);
    done_.emplace(block->window.index, std::move(block));
    if (appending_) return;  // whoever is at it will find this one too
    appending_ = true;
    while (!done_.empty() && done_.begin()->first == next_) {
      auto ready = std::move(done_.begin()->second);
      done_.erase(done_.begin());
      ++next_;
      lock.unlock();
      builder_.append(*ready);
      // Columns that grow by doubling are copied, and touched, twice over: guess their length once.
      if (ready->window.index == kGuessAfter && source_.total() != 0 && ready->taken != 0)
        builder_.reserve(
            std::min(kLargestGuess, 1.03 * static_cast<double>(source_.total()) / static_cast<double>(ready->taken)));
      lock.lock();
      free_.push_back(std::move(ready));
      some_free_.notify_one();
    }
    appending_ = false;
  }

  TraceText& text_;
  ByteSource& source_;
  RankBuilder& builder_;
  const KinetoOptions& options_;
  std::mutex source_mutex_, mutex_;
  std::condition_variable some_free_;
  std::vector<std::unique_ptr<RowBlock>> free_;
  std::map<std::uint64_t, std::unique_ptr<RowBlock>> done_;  // parsed, waiting for their turn
  std::uint64_t next_ = 0;
  bool appending_ = false, ended_ = false;
};

// Lines before `offset` of the document, plus one; 0 when it cannot be read again.
std::uint64_t line_of(const KinetoOptions& options, std::uint64_t offset) {
  if (!options.reopen) return 0;
  auto source = options.reopen();
  if (!source) return 0;
  std::vector<char> buffer(std::size_t{1} << 18);
  std::uint64_t line = 1;
  while (offset > 0) {
    auto got = (*source)->read(buffer.data(), std::min<std::uint64_t>(buffer.size(), offset));
    if (!got || *got == 0) return 0;
    line += static_cast<std::uint64_t>(std::count(buffer.data(), buffer.data() + *got, '\n'));
    offset -= *got;
  }
  return line;
}

std::string place(const KinetoOptions& options, std::uint64_t offset) {
  std::string s = "byte " + std::to_string(offset);
  if (const std::uint64_t line = line_of(options, offset); line != 0) s += " (line " + std::to_string(line) + ")";
  return s;
}

// What the stream lost or left over.
void note_text(const TraceText& text, const ByteSource& source, const KinetoOptions& options, Notes& notes) {
  const SourceTrouble trouble = source.trouble();
  using Kind = SourceTrouble::Kind;
  const std::string stream = trouble.kind == Kind::none
                                 ? std::string()
                                 : trouble.what + " at byte " + std::to_string(trouble.at) + " of the file";
  if (text.cut) {
    std::string where = stream.empty() ? "" : stream + "; ";
    where += "the text ends at byte " + std::to_string(text.bytes()) + ", " + text.cut_in +
             "; last whole event ends at byte " + std::to_string(text.cut_at) + ", " + std::to_string(text.cut_bytes) +
             " bytes after it are lost";
    notes.add("truncated", Severity::data_loss, 1, where,
              "the whole events before it are used; metadata behind the events (base time, rank) may be missing");
  } else if (trouble.kind == Kind::checksum || trouble.kind == Kind::corrupt || trouble.kind == Kind::cut) {
    notes.add("compressed-data-damaged", Severity::data_loss, 1, stream,
              "the text is complete, but may have been altered");
  }
  if (trouble.kind == Kind::trailing) notes.add("trailing-data", Severity::warning, 1, stream, "ignored");
  switch (text.trailing) {
    case TraceText::Trailing::none:
      break;
    case TraceText::Trailing::padding:
      notes.add("trailing-data", Severity::warning, 1,
                "NUL bytes from byte " + std::to_string(text.trailing_at) + " on", "ignored");
      break;
    case TraceText::Trailing::document:
      notes.add("trailing-document", Severity::data_loss, 1,
                "a second document begins at " + place(options, text.trailing_at),
                "the file was not cut: something was written behind it; only the first document is used");
      break;
    case TraceText::Trailing::other:
      notes.add("trailing-document", Severity::data_loss, 1, "other data begin at " + place(options, text.trailing_at),
                "the file was not cut: something was written behind it; only the first document is used");
      break;
  }
  auto skipped = [&](const SkippedText& s, std::string_view name, const std::string& advice) {
    if (s.count == 0) return;
    notes.add(name, Severity::data_loss, s.count,
              place(options, s.first_offset) + (s.first_what.empty() ? "" : ": " + s.first_what) + ": " +
                  s.first_quote + "; " + std::to_string(s.bytes) + " bytes skipped in all",
              advice);
  };
  skipped(text.malformed, "malformed-event", "skipped up to the next event, as --recover asks");
  skipped(text.too_long, "event-too-long",
          "events of more than " + std::to_string(options.largest_event >> 20) + " MiB are skipped");
  auto commas = [&](const CommaRepair& r, std::string_view name, std::string_view advice) {
    if (r.count != 0) notes.add(name, Severity::warning, r.count, place(options, r.first_offset), advice);
  };
  commas(text.extra_commas, "extra-comma", "commas that JSON forbids, before a closing bracket for one: passed over");
  commas(text.missing_commas, "missing-comma", "commas that were left out, between two events or members: supplied");
  if (!text.metadata_too_long.empty())
    notes.add("metadata-too-long", Severity::warning, 1, text.metadata_too_long,
              "a metadata value of over 64 MiB was skipped");
  if (text.event_arrays > 1)
    notes.add("several-event-arrays", Severity::warning, text.event_arrays, "traceEvents",
              "the events of all of them are used");
}

}  // namespace

tl::expected<std::vector<RankTrace>, KinetoError> read_kineto(ByteSource& source, const std::string& file,
                                                              const KinetoOptions& options) {
  auto failed = [&](Error e, bool not_a_trace = false) {
    return tl::unexpected<KinetoError>(KinetoError{.error = std::move(e), .not_a_trace = not_a_trace});
  };
  RankTrace trace;
  trace.file = file;
  TraceText::Options text_options;
  // A small file needs no large window; compressed, it may be some sixteen times as long.
  text_options.window_bytes = options.window_bytes;
  if (source.total() != 0)
    text_options.window_bytes = std::clamp<std::uint64_t>(
        source.total() * 16, std::min<std::size_t>(4096, options.window_bytes), options.window_bytes);
  text_options.largest_event = options.largest_event;
  text_options.recover = options.recover;
  text_options.engine = options.engine;
  TraceText text(source, text_options);
  RankBuilder builder(trace);
  Pipeline pipeline(text, source, builder, options);
  pipeline.run();

  if (text.read_error()) return failed(*text.read_error());
  if (pipeline.error) {
    const TextError& e = *pipeline.error;
    const SourceTrouble trouble = source.trouble();
    std::string what = e.what;
    if (!e.quote.empty()) what += ": " + e.quote;
    if (trouble.kind != SourceTrouble::Kind::none)
      what += "; " + trouble.what + " at byte " + std::to_string(trouble.at) + " of the file";
    std::string where = file;
    if (e.offset != 0) where += ": " + place(options, e.offset);
    const bool in_an_event = !e.quote.empty();
    Error error{std::move(what), std::move(where),
                in_an_event && !options.recover ? "--recover skips such events" : ""};
    return tl::unexpected<KinetoError>(KinetoError{std::move(error), e.not_a_trace, text.bytes() == 0});
  }
  trace.json_bytes = text.bytes();
  note_text(text, source, options, trace.notes);
  if (trace.events == 0) {
    if (text.cut) return failed({"the file ends before the first whole event", file, ""});
    return failed({"a trace without events", file, "was the profiler running?"}, text.top_level_array);
  }
  if (builder.phases == 0) return failed({"not a trace: no event has a \"ph\"", file, ""}, true);
  for (const MetadataMember& m : text.metadata) {
    if (m.key != "orrery" || m.text.find("replayed run") == std::string::npos) continue;
    if (m.text.find("\"ranks\":1,") == std::string::npos)
      return failed({"a replayed run of several ranks, as --export writes it, not a recording", file, ""}, true);
    trace.notes.add("replayed-run", Severity::warning, 1, file,
                    "written by --export: its times are the model's, not measured");
  }
  read_metadata(text.metadata, trace);
  std::vector<RankTrace> ranks;
  if (builder.events_of_rank.empty()) {
    finish_rank(trace, builder.rest);
    ranks.push_back(std::move(trace));
    return ranks;
  }
  for (RankRows& part : split_ranks(trace, builder)) {
    finish_rank(part.trace, part.rest);
    ranks.push_back(std::move(part.trace));
  }
  return ranks;
}

}  // namespace orrery
