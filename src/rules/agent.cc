#include "rules/agent.h"

#include <curl/curl.h>
#include <re2/re2.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "rules/matcher.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostPromptBytes = 24000;
constexpr std::size_t kMostAnswerBytes = std::size_t{4} << 20;

constexpr const char* kInstructions =
    "You diagnose failed training jobs of large language models. Below are the lines of a job's logs that are left "
    "after "
    "everything common was taken out, each with its file number and line number. Find the ROOT CAUSE, not its "
    "symptoms: "
    "time-outs of collectives, SIGTERM, broken pipes and exit codes are consequences. Answer with one JSON object and "
    "nothing else: {\"reason\": one of [REASONS], \"category\": \"Infrastructure\"|\"Framework\"|\"Script\", "
    "\"restart\": \"auto\"|\"auto-exclude\"|\"auto-rollback\"|\"no\", \"root_cause\": the decisive line, "
    "\"advice\": one sentence, \"pattern\": an RE2 regular expression that matches the decisive line of this and of "
    "similar failures but no line of a healthy log}.\n";

struct Curl {
  Curl() : handle(curl_easy_init()) {}
  ~Curl() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(handle);
  }
  Curl(const Curl&) = delete;
  Curl& operator=(const Curl&) = delete;
  CURL* handle;
  curl_slist* headers = nullptr;
};

std::size_t collect(char* data, std::size_t size, std::size_t n, void* to) {
  auto& out = *static_cast<std::string*>(to);
  if (out.size() + size * n > kMostAnswerBytes) return 0;
  out.append(data, size * n);
  return size * n;
}

Result<std::string> post(const AgentOptions& options, const std::string& url, const std::string& body, double seconds) {
  Curl curl;
  if (curl.handle == nullptr) return fail("no HTTP client");
  std::string answer;
  curl.headers = curl_slist_append(curl.headers, "Content-Type: application/json");
  if (!options.key.empty())
    curl.headers = curl_slist_append(curl.headers, ("Authorization: Bearer " + options.key).c_str());
  curl_easy_setopt(curl.handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.handle, CURLOPT_HTTPHEADER, curl.headers);
  curl_easy_setopt(curl.handle, CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(curl.handle, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
  curl_easy_setopt(curl.handle, CURLOPT_WRITEFUNCTION, collect);
  curl_easy_setopt(curl.handle, CURLOPT_WRITEDATA, &answer);
  curl_easy_setopt(curl.handle, CURLOPT_TIMEOUT_MS, std::max(1L, std::lround(seconds * 1e3)));
  curl_easy_setopt(curl.handle, CURLOPT_CONNECTTIMEOUT, 10L);
  curl_easy_setopt(curl.handle, CURLOPT_NOSIGNAL, 1L);
  const CURLcode state = curl_easy_perform(curl.handle);
  if (state != CURLE_OK) return fail(std::string("cannot be asked: ") + curl_easy_strerror(state), url);
  long status = 0;
  curl_easy_getinfo(curl.handle, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200)
    return fail("answers with status " + std::to_string(status), url, "is it an OpenAI-compatible server?");
  return answer;
}

std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// The object in what the model wrote, also between words or in a fence.
std::optional<AgentAnswer> read_answer(const std::string& content) {
  const std::size_t open = content.find('{'), close = content.rfind('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  const Json object = Json::parse(content.substr(open, close - open + 1), nullptr, false);
  if (!object.is_object()) return {};
  AgentAnswer a{text_of(object, "reason"),     text_of(object, "category"), text_of(object, "restart"),
                text_of(object, "root_cause"), text_of(object, "advice"),   text_of(object, "pattern")};
  const Reason* reason = find_reason(a.reason);
  if (reason == nullptr || a.reason == "None") return {};
  const std::string category(reason->category);
  if (category != "by-frame" || (a.category != "Framework" && a.category != "Script"))
    a.category = category == "by-frame" ? "Framework" : category;
  if (a.restart != "auto" && a.restart != "auto-exclude" && a.restart != "auto-rollback" && a.restart != "no")
    a.restart = reason->restart;
  return a;
}

std::string toml_quoted(const std::string& s) {
  if (s.find_first_of("'\n\r") == std::string::npos) return "'" + s + "'";
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace

std::string agent_prompt(const std::vector<KeptLine>& lines) {
  std::string reasons;
  for (const std::string_view name : reason_names())
    if (name != "None") reasons += (reasons.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  std::string prompt = kInstructions;
  prompt.replace(prompt.find("REASONS"), 7, reasons);
  // The last lines that fit.
  std::size_t from = lines.size(), bytes = 0;
  while (from > 0 && bytes + lines[from - 1].text.size() + 24 <= kMostPromptBytes)
    bytes += lines[--from].text.size() + 24;
  for (; from < lines.size(); ++from)
    prompt +=
        std::to_string(lines[from].file) + ":" + std::to_string(lines[from].line) + ": " + lines[from].text + "\n";
  return prompt;
}

Result<std::vector<AgentAnswer>> ask_agent(const AgentOptions& options, const std::vector<KeptLine>& lines,
                                           Notes& notes) {
  std::string url = options.url;
  while (!url.empty() && url.back() == '/') url.pop_back();
  const std::string path = "/chat/completions";
  if (url.size() < path.size() || url.compare(url.size() - path.size(), path.size(), path) != 0) url += path;
  std::vector<AgentAnswer> answers;
  const std::string prompt = agent_prompt(lines);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < options.samples; ++i) {
    const double left =
        options.timeout_s - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!(left > 0)) return fail("takes too long", url, "--llm-timeout gives it more time");
    const Json body{{"model", options.model.empty() ? "default" : options.model},
                    {"temperature", 0.7},
                    {"seed", i},
                    {"messages", Json::array({{{"role", "user"}, {"content", prompt}}})}};
    const auto raw = post(options, url, body.dump(-1, ' ', false, Json::error_handler_t::replace), left);
    if (!raw) return tl::unexpected(raw.error());
    const Json reply = Json::parse(*raw, nullptr, false);
    const Json::json_pointer content("/choices/0/message/content");
    if (!reply.is_object() || !reply.contains(content) || !reply[content].is_string())
      return fail("its answer has no choices[0].message.content", url, "is it an OpenAI-compatible server?");
    if (auto a = read_answer(reply[content].get<std::string>())) {
      answers.push_back(std::move(*a));
    } else {
      notes.add("agent-answer-unusable", Severity::warning, 1, "sample " + std::to_string(i + 1),
                "no JSON object with a known reason in it; left out of the vote");
    }
  }
  return answers;
}

std::optional<AgentVote> vote(const std::vector<AgentAnswer>& answers, int samples) {
  std::map<std::string, int> votes;
  for (const AgentAnswer& a : answers) ++votes[a.reason];
  for (const auto& [reason, n] : votes) {
    if (n * 2 <= samples) continue;
    // Among those who agree, the restart that most of them give.
    std::map<std::string, int> restarts;
    for (const AgentAnswer& a : answers)
      if (a.reason == reason) ++restarts[a.restart];
    const auto most = std::max_element(restarts.begin(), restarts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const AgentAnswer& a : answers)
      if (a.reason == reason && a.restart == most->first) return AgentVote{a, static_cast<double>(n) / samples};
  }
  return {};
}

std::optional<Rule> proven_rule(const std::vector<AgentAnswer>& answers, const AgentAnswer& chosen,
                                const std::vector<KeptLine>& failing, const std::vector<std::string>& healthy,
                                const std::string& origin, Notes& notes) {
  const auto refuse = [&](const AgentAnswer& a, const std::string& why) {
    notes.add("agent-rule-refused", Severity::info, 1, a.pattern + ": " + why,
              "a proposed rule must compile, match the failing log and no line of a healthy one");
  };
  for (const AgentAnswer& a : answers) {
    if (a.pattern.empty() || a.reason != chosen.reason) continue;
    Rule rule;
    rule.id = "learnt-" + std::to_string(std::hash<std::string>()(a.pattern) % 1000000007u);
    rule.family = "learnt";
    rule.origin = origin;
    rule.pattern = a.pattern;
    rule.reason = a.reason;
    rule.category = a.category;
    rule.restart = a.restart;
    rule.kind = "learnt";
    rule.advice = a.advice;
    rule.confidence = 0.6;
    Notes compiled;
    const auto matcher = Matcher::compile({{rule}}, compiled);
    if (!matcher) {
      refuse(a, matcher.error().what);
      continue;
    }
    if (!compiled.rows.empty()) {
      refuse(a, "no automaton takes it");
      continue;
    }
    const auto hit =
        std::find_if(failing.begin(), failing.end(), [&](const KeptLine& l) { return (*matcher)->matches(0, l.text); });
    if (hit == failing.end()) {
      refuse(a, "matches no line of the failing log");
      continue;
    }
    const auto bad =
        std::find_if(healthy.begin(), healthy.end(), [&](const std::string& l) { return (*matcher)->matches(0, l); });
    if (bad != healthy.end()) {
      refuse(a, "matches a healthy line: " + bad->substr(0, 120));
      continue;
    }
    rule.sample = hit->text;
    rule.counter = healthy.empty() ? "all is well" : healthy.front();
    return rule;
  }
  return {};
}

std::string rule_text(const Rule& r) {
  std::string out = "\n[[rule]]\n";
  const auto line = [&](const char* key, const std::string& value) {
    if (!value.empty()) out += std::string(key) + " = " + toml_quoted(value) + "\n";
  };
  line("id", r.id);
  line("pattern", r.pattern);
  line("reason", r.reason);
  line("category", r.category);
  line("restart", r.restart);
  line("kind", r.kind);
  line("advice", r.advice);
  out += "confidence = " + std::to_string(r.confidence).substr(0, 4) + "\n";
  line("origin", r.origin);
  line("sample", r.sample);
  line("counter", r.counter);
  return out;
}

}  // namespace orrery
