#include "loadgen/load_run.h"

#include <curl/curl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/text_match.h"
#include "loadgen/event_stream.h"

namespace orrery {
namespace {

constexpr std::size_t kMostErrorText = 300;
// Requests begun before the others are looked at again: libcurl's cost of an ended one grows with those that ended
// beside it.
constexpr int kMostAtOnce = 64;
// A prompt's words are some tokens each, and a chat's template comes on top.
constexpr std::int64_t kMostPromptGrowth = 64, kMostTemplate = 16'384;

using Clock = std::chrono::steady_clock;

double thread_cpu_s() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

Status start_curl() {
  static std::once_flag once;
  static CURLcode code = CURLE_OK;
  std::call_once(once, [] { code = curl_global_init(CURL_GLOBAL_DEFAULT); });
  if (code != CURLE_OK) return fail(std::string("libcurl does not start: ") + curl_easy_strerror(code), "loadgen");
  return {};
}

struct EasyDelete {
  void operator()(CURL* c) const { curl_easy_cleanup(c); }
};
struct MultiDelete {
  void operator()(CURLM* m) const { curl_multi_cleanup(m); }
};
struct ListDelete {
  void operator()(curl_slist* l) const { curl_slist_free_all(l); }
};
using Easy = std::unique_ptr<CURL, EasyDelete>;
using Headers = std::unique_ptr<curl_slist, ListDelete>;

Headers headers_of(const std::vector<std::string>& lines) {
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, "Expect:");  // bodies go at once
  for (const std::string& line : lines) list = curl_slist_append(list, line.c_str());
  return Headers(list);
}

std::string one_line(std::string text) {
  if (text.size() > kMostErrorText) text.resize(kMostErrorText);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text;
}

// A prompt of so many tokens, different for each request so that no prefix is found again, but for the first
// `shared` tokens; all of them where the workload's prompts are alike. Words of common tokenisers: one token each, near
// enough; the server's own count is what is reported.
nlohmann::json prompt_of(const LoadTarget& target, const Workload& w, std::size_t index) {
  const Request& r = w.requests[index];
  const std::int64_t shared = w.alike ? r.input : static_cast<std::int64_t>(r.prefixes) * w.prefix_piece;
  Random random(0x9e3779b97f4a7c15u * (index + 1)), common(1);
  if (target.token_ids) {
    nlohmann::json ids = nlohmann::json::array();
    for (std::int64_t k = 0; k < r.input; ++k)
      ids.push_back(100 + static_cast<std::int64_t>(20'000 * (k < shared ? common : random).uniform()));
    return ids;
  }
  static constexpr const char* kWords[] = {
      "time",    "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
      "life",    "child",   "world",    "school", "state",      "family", "student", "group",
      "country", "problem", "hand",     "part",   "place",      "case",   "week",    "company",
      "system",  "program", "question", "work",   "government", "number", "night",   "point"};
  std::string text;
  for (std::int64_t k = 0; k < r.input; ++k) {
    if (k > 0) text += ' ';
    text += kWords[static_cast<std::size_t>(32 * (k < shared ? common : random).uniform())];
  }
  return text;
}

std::string body_of(const LoadTarget& target, const Workload& w, std::size_t index) {
  nlohmann::json body = {{"model", target.model},
                         {"max_tokens", w.requests[index].output},
                         {"temperature", target.temperature},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}}};
  if (target.ignore_eos) body["ignore_eos"] = true;
  if (target.chat)
    body["messages"] = {{{"role", "user"}, {"content", prompt_of(target, w, index)}}};
  else
    body["prompt"] = prompt_of(target, w, index);
  return body.dump();
}

struct Flight {
  explicit Flight(std::function<double()> clock)
      : now(std::move(clock)), stream([this](std::string_view data) { take(data); }) {}
  void begin(LoadRequest& r, LogHistogram& between) {
    request = &r, itl = &between;
    stream = EventStream([this](std::string_view data) { take(data); });
    plain.clear();
    told = told_prompt = -1;
    last = -1;
    said_done = over = out_of_handles = false;
  }
  void take(std::string_view data) {
    if (over) return;  // nothing follows [DONE]
    const CompletionChunk c = read_chunk(data);
    if (!c.error.empty()) {
      request->error = one_line(c.error);
      return;
    }
    over = c.done;
    said_done |= c.done || c.finished;
    if (c.completion_tokens > 0) told = c.completion_tokens;
    if (c.prompt_tokens > 0) told_prompt = c.prompt_tokens;
    if (!c.text) return;
    const double at = now();
    if (request->record.first_token < 0) request->record.first_token = at;
    if (last >= 0) itl->add(at - last, 1);
    last = at;
    ++request->chunks;
  }

  std::function<double()> now;
  EventStream stream;
  LoadRequest* request = nullptr;
  LogHistogram* itl = nullptr;
  std::string body, plain;  // plain: the begin of an answer that is no stream
  double last = -1;
  std::int64_t told = -1, told_prompt = -1;  // tokens, by the server
  bool said_done = false, over = false, out_of_handles = false;
  Easy easy;
};

std::size_t on_bytes(char* bytes, std::size_t size, std::size_t n, void* to) {
  Flight& f = *static_cast<Flight*>(to);
  const std::string_view text(bytes, size * n);
  if (f.plain.size() < kMostErrorText) f.plain += text.substr(0, kMostErrorText - f.plain.size());
  f.stream.feed(text);
  return size * n;
}

std::size_t append(char* bytes, std::size_t size, std::size_t n, void* to) {
  std::string& out = *static_cast<std::string*>(to);
  if (out.size() + size * n > (1 << 22)) return 0;
  out.append(bytes, size * n);
  return size * n;
}

// A server is not to blame for handles that this process has not got.
curl_socket_t open_socket(void* to, curlsocktype, curl_sockaddr* address) {
  const int fd = ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE)) static_cast<Flight*>(to)->out_of_handles = true;
  return fd < 0 ? CURL_SOCKET_BAD : fd;
}

void raise_handle_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}
std::string out_of_handles_text() {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  return "this process is out of file handles (" + std::to_string(limit.rlim_cur) +
         " by ulimit -n): raise it, or --concurrency N";
}

// The server's counts, where they can be.
void take_usage(const Flight& f, LoadRequest& r) {
  const std::int64_t asked = r.record.output;
  if (f.told > 0) {
    r.implausible = f.told > std::max(asked, r.chunks);
    if (!r.implausible) r.record.output = f.told, r.counted = true;
  }
  if (f.told_prompt > 0) {
    const bool can_be = f.told_prompt <= kMostPromptGrowth * r.record.input + kMostTemplate;
    r.implausible |= !can_be;
    if (can_be) r.record.input = f.told_prompt;
  }
}

// What an ended transfer comes to.
void land(Flight& f, CURLcode code, double now) {
  LoadRequest& r = *f.request;
  f.stream.finish();
  curl_easy_getinfo(f.easy.get(), CURLINFO_RESPONSE_CODE, &r.status);
  if (code != CURLE_OK && f.out_of_handles)
    r.error = out_of_handles_text();
  else if (code != CURLE_OK)
    r.error = curl_easy_strerror(code);
  else if (r.status != 200 && r.error.empty())
    r.error = "HTTP " + std::to_string(r.status) + ": " + one_line(f.plain);
  else if (r.error.empty() && r.chunks == 0)
    r.error = "no token in the answer: " + one_line(f.plain);
  else if (r.error.empty() && !f.said_done)
    r.error = "the stream ended early";
  if (!r.error.empty()) return;
  take_usage(f, r);
  if (!r.counted) r.record.output = r.chunks;
  r.record.end = f.last >= 0 ? f.last : now;
}

// libcurl says which sockets to watch and when to look again; no other request is touched when one of them has bytes.
class Sockets {
 public:
  Sockets() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), multi_(curl_multi_init()) {
    if (!multi_) return;
    curl_multi_setopt(multi_.get(), CURLMOPT_SOCKETFUNCTION, watch);
    curl_multi_setopt(multi_.get(), CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(multi_.get(), CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(multi_.get(), CURLMOPT_TIMERDATA, this);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  ~Sockets() {
    multi_.reset();  // closes what is watched
    if (epoll_ >= 0) ::close(epoll_);
  }
  bool started() const { return epoll_ >= 0 && multi_; }
  CURLM* multi() const { return multi_.get(); }

  // Waits at most `ns` for sockets or libcurl's timer, and serves them.
  void serve(double ns) {
    if (has_timer_) ns = std::min(ns, std::chrono::duration<double, std::nano>(timer_ - Clock::now()).count());
    const auto wait = static_cast<std::int64_t>(std::max(ns, 0.0));
    const timespec time{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
    pollfd ready{epoll_, POLLIN, 0};
    int running = 0;
    if (::ppoll(&ready, 1, &time, nullptr) > 0) {  // epoll's own timeouts are whole milliseconds
      const int n = ::epoll_wait(epoll_, events_.data(), static_cast<int>(events_.size()), 0);
      for (int k = 0; k < n; ++k) {
        const epoll_event& e = events_[static_cast<std::size_t>(k)];
        const int what = ((e.events & EPOLLIN) != 0 ? CURL_CSELECT_IN : 0) |
                         ((e.events & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0) |
                         ((e.events & (EPOLLERR | EPOLLHUP)) != 0 ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(multi_.get(), e.data.fd, what, &running);
      }
    }
    if (has_timer_ && Clock::now() >= timer_) {
      has_timer_ = false;
      curl_multi_socket_action(multi_.get(), CURL_SOCKET_TIMEOUT, 0, &running);
    }
  }

 private:
  static int watch(CURL*, curl_socket_t fd, int what, void* to, void* known) {
    Sockets& s = *static_cast<Sockets*>(to);
    if (what == CURL_POLL_REMOVE) {
      ::epoll_ctl(s.epoll_, EPOLL_CTL_DEL, fd, nullptr);
      return 0;
    }
    epoll_event e{};
    e.events = (what != CURL_POLL_OUT ? EPOLLIN : 0u) | (what != CURL_POLL_IN ? EPOLLOUT : 0u);
    e.data.fd = fd;
    ::epoll_ctl(s.epoll_, known != nullptr ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e);
    curl_multi_assign(s.multi_.get(), fd, to);
    return 0;
  }
  static int set_timer(CURLM*, long ms, void* to) {
    Sockets& s = *static_cast<Sockets*>(to);
    s.has_timer_ = ms >= 0;
    s.timer_ = Clock::now() + std::chrono::milliseconds(std::max(ms, 0L));
    return 0;
  }

  int epoll_ = -1;
  bool has_timer_ = false;
  Clock::time_point timer_;
  std::array<epoll_event, 256> events_{};
  std::unique_ptr<CURLM, MultiDelete> multi_;
};

}  // namespace

Result<std::string> endpoint_of(const std::string& url, bool chat) {
  if (!url.starts_with("http://") && !url.starts_with("https://"))
    return fail("not a URL: " + url, "--url", "for example --url http://127.0.0.1:8000");
  if (const std::size_t host = url.find("://") + 3; host >= url.size() || url[host] == '/' || url[host] == ':')
    return fail("a URL without a host: " + url, "--url", "for example --url http://127.0.0.1:8000");
  std::string base = url;
  while (base.ends_with('/')) base.pop_back();
  if (ends(base, "/completions")) return base;
  if (!ends(base, "/v1")) base += "/v1";
  return base + (chat ? "/chat/completions" : "/completions");
}

Result<std::string> first_model(const std::string& url, const std::vector<std::string>& headers, double timeout_s) {
  if (const Status ok = start_curl(); !ok) return tl::unexpected(ok.error());
  const std::size_t cut = url.rfind("/v1/");
  const std::string at = (cut == std::string::npos ? url : url.substr(0, cut)) + "/v1/models";
  const Easy easy(curl_easy_init());
  const Headers list = headers_of(headers);
  std::string text;
  curl_easy_setopt(easy.get(), CURLOPT_URL, at.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, list.get());
  curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &text);
  curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, std::max(1L, static_cast<long>(1e3 * timeout_s)));
  curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  const CURLcode code = curl_easy_perform(easy.get());
  if (code != CURLE_OK) return fail(curl_easy_strerror(code), at, "is the server up?");
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (j.is_object() && j.contains("data") && j["data"].is_array() && !j["data"].empty() && j["data"][0].is_object() &&
      j["data"][0].contains("id") && j["data"][0]["id"].is_string())
    return j["data"][0]["id"].get<std::string>();
  return fail("the server lists no models", at, "--model NAME says which one to ask for");
}

Result<LoadResult> send_load(const LoadTarget& target, const Workload& workload,
                             const std::function<void(std::uint64_t done)>& on_progress) {
  if (const Status ok = start_curl(); !ok) return tl::unexpected(ok.error());
  raise_handle_limit();
  Sockets sockets;
  if (!sockets.started()) return fail("libcurl or epoll does not start", "loadgen");
  CURLM* const multi = sockets.multi();
  LoadResult result;
  result.requests.resize(workload.requests.size());
  const Headers headers = headers_of(target.headers);
  const Clock::time_point begin = Clock::now();
  const auto now = [begin] {
    return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
  };
  const double cpu = thread_cpu_s();
  std::vector<std::unique_ptr<Flight>> flights;  // end before what watches them
  std::vector<Flight*> idle;
  std::size_t next = 0, done = 0;
  std::int64_t flying = 0;

  const auto send = [&](std::size_t index) {
    if (idle.empty()) {
      flights.push_back(std::make_unique<Flight>(now));
      Flight& f = *flights.back();
      f.easy.reset(curl_easy_init());
      CURL* c = f.easy.get();
      curl_easy_setopt(c, CURLOPT_URL, target.url.c_str());
      curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
      curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
      curl_easy_setopt(c, CURLOPT_WRITEDATA, &f);
      curl_easy_setopt(c, CURLOPT_PRIVATE, &f);
      curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket);
      curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, &f);
      curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
      curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
      curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, static_cast<long>(1e3 * target.timeout_s));
      idle.push_back(&f);
    }
    Flight& f = *idle.back();
    idle.pop_back();
    LoadRequest& r = result.requests[index];
    r.record.arrival = workload.requests[index].arrival_ns;
    r.record.input = workload.requests[index].input;
    r.record.output = workload.requests[index].output;
    f.begin(r, result.itl);
    f.body = body_of(target, workload, index);
    curl_easy_setopt(f.easy.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(f.body.size()));
    curl_easy_setopt(f.easy.get(), CURLOPT_POSTFIELDS, f.body.c_str());
    r.sent = r.record.started = now();
    curl_multi_add_handle(multi, f.easy.get());
    result.most_in_flight = std::max(result.most_in_flight, ++flying);
  };

  while (done < workload.requests.size()) {
    const auto may_send = [&] {
      return next < workload.requests.size() && (target.most_in_flight == 0 || flying < target.most_in_flight);
    };
    const auto is_due = [&] { return may_send() && workload.requests[next].arrival_ns <= now(); };
    for (int k = 0; k < kMostAtOnce && is_due(); ++k) send(next++);
    double wait = 100e6;
    if (may_send()) wait = std::clamp(workload.requests[next].arrival_ns - now(), 0.0, wait);
    sockets.serve(wait);
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      void* of = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &of);
      Flight& f = *static_cast<Flight*>(of);
      const CURLcode code = message->data.result;
      land(f, code, now());
      result.dropped_events += f.stream.dropped_lines();
      curl_multi_remove_handle(multi, f.easy.get());
      idle.push_back(&f);
      --flying;
      on_progress(++done);
    }
  }
  result.client_cpu_s = thread_cpu_s() - cpu;
  double end = 0;
  for (const LoadRequest& r : result.requests) end = std::max(end, r.record.end);
  result.seconds = end / 1e9;
  return result;
}

}  // namespace orrery
