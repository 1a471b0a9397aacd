#include <curl/curl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "supervisor/secrets.h"
#include "supervisor/tell.h"

namespace orrery {
namespace {

constexpr std::size_t kMostWaiting = 100;  // posts

std::size_t ignore(char*, std::size_t size, std::size_t n, void*) { return size * n; }

}  // namespace

std::string webhook_body(const std::string& job, const GuardEvent& event, const Decision& decision,
                         std::int64_t attempt, std::int64_t step) {
  nlohmann::json body{{"job", job},
                      {"time_ns", event.at},
                      {"kind", name_of(event.kind)},
                      {"decision", decision.kind},
                      {"text", without_secrets(decision.text)},
                      {"attempt", attempt},
                      {"step", step},
                      {"evidence", nlohmann::json::array()}};
  for (const std::string& line : decision.evidence) body["evidence"].push_back(without_secrets(line));
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status check_webhook_url(const std::string& url) {
  CURLU* const parts = ::curl_url();
  char* host = nullptr;
  const bool good = (url.rfind("http://", 0) == 0 || url.rfind("https://", 0) == 0) && parts != nullptr &&
                    ::curl_url_set(parts, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK &&
                    ::curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK && host != nullptr && *host != '\0';
  ::curl_free(host);
  ::curl_url_cleanup(parts);
  // The URL may be a secret itself.
  if (!good) return fail("not a URL of a host", "--webhook", "for example http://127.0.0.1:9000/hook");
  return {};
}

struct Webhook::Impl {
  std::string url;
  double timeout_s = 5;
  std::thread thread;
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::string> waiting;
  bool stop = false;
  std::uint64_t unsent = 0;
  std::string error;
  std::chrono::steady_clock::time_point stopped_at{};

  void run() {
    for (;;) {
      std::string body;
      double limit = timeout_s;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || !waiting.empty(); });
        if (waiting.empty()) return;
        if (stop) limit -= std::chrono::duration<double>(std::chrono::steady_clock::now() - stopped_at).count();
        if (limit <= 0.01) {
          unsent += waiting.size();
          error = "no time left to send";
          return;
        }
        body = std::move(waiting.front());
        waiting.pop_front();
      }
      const std::string problem = send(body, limit);
      if (problem.empty()) continue;
      const std::lock_guard lock(mutex);
      ++unsent;
      error = problem;
    }
  }

  std::string send(const std::string& body, double limit) const {
    CURL* const curl = ::curl_easy_init();
    if (curl == nullptr) return "libcurl cannot be used";
    curl_slist* headers = ::curl_slist_append(nullptr, "Content-Type: application/json");
    ::curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    ::curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(limit * 1e3));
    ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, ignore);
    ::curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    ::curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    const CURLcode code = ::curl_easy_perform(curl);
    long status = 0;
    ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    ::curl_slist_free_all(headers);
    ::curl_easy_cleanup(curl);
    if (code != CURLE_OK) return ::curl_easy_strerror(code);
    return status >= 200 && status < 300 ? "" : "HTTP status " + std::to_string(status);
  }
};

Webhook::Webhook(std::string url, double timeout_s) : impl_(std::make_unique<Impl>()) {
  impl_->url = std::move(url);
  impl_->timeout_s = timeout_s;
  impl_->thread = std::thread([i = impl_.get()] { i->run(); });
}

Webhook::~Webhook() { finish(); }

std::uint64_t Webhook::finish() {
  if (!impl_->thread.joinable()) return unsent();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
    impl_->stopped_at = std::chrono::steady_clock::now();
  }
  impl_->wake.notify_all();
  impl_->thread.join();
  return unsent();
}

void Webhook::post(std::string body) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->waiting.size() >= kMostWaiting) {
      ++impl_->unsent;
      impl_->error = "too many wait to be sent";
      return;
    }
    impl_->waiting.push_back(std::move(body));
  }
  impl_->wake.notify_all();
}

std::uint64_t Webhook::unsent() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->unsent;
}

std::string Webhook::last_error() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->error;
}

}  // namespace orrery
