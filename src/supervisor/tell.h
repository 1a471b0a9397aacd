// What is told to others while a job is guarded: metrics for Prometheus, decisions to a webhook.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "supervisor/guard_account.h"

namespace orrery {

// In Prometheus' text format. `unsent` = decisions that the webhook did not take.
std::string metrics_text(const std::string& job, const GuardState& state, const GuardAccount& account,
                         std::uint64_t unsent);

// Serves one text over HTTP (GET /metrics) from a thread of its own.
class MetricsServer {
 public:
  // "ADDRESS:PORT", "[::1]:PORT" or ":PORT", which listens on 127.0.0.1 alone; port 0: the kernel chooses. Errors: not
  // an address, cannot be listened on.
  static Result<std::unique_ptr<MetricsServer>> open(const std::string& where);
  ~MetricsServer();
  void set(std::string text);
  int port() const;

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The body of a post: job, time, event, decision, text, evidence (without_secrets), attempt, step. Nothing of the
// environment, of arguments or of the configuration.
std::string webhook_body(const std::string& job, const GuardEvent& event, const Decision& decision,
                         std::int64_t attempt, std::int64_t step);

Status check_webhook_url(const std::string& url);  // errors: no http or https, no host

// Posts from a thread of its own; what cannot be sent in time is counted and dropped, never waited for.
class Webhook {
 public:
  Webhook(std::string url, double timeout_s);
  ~Webhook();  // sends what is left, for at most one timeout
  Webhook(const Webhook&) = delete;
  Webhook& operator=(const Webhook&) = delete;
  void post(std::string body);
  std::uint64_t finish();  // sends what is left as the destructor does; how many were not taken in all
  std::uint64_t unsent() const;
  std::string last_error() const;  // without the URL, which may be a secret itself

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orrery
