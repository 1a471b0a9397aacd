// Templates: what varies in a line is masked; groups that differ in one word are one where that word varies.
#include "rules/templates.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

namespace orrery {
namespace {

std::string masked(std::string_view line) {
  std::string out;
  for (const std::string& t : masked_tokens(line)) out += (out.empty() ? "" : " ") + t;
  return out;
}

TEST(Templates, WhatVariesIsMasked) {
  const std::pair<const char*, const char*> cases[] = {
      {"Block broadcast_9 stored in memory (estimated size 8.8 KB, free 14.0 KB)",
       "Block * stored in memory ( estimated size * , free * )"},
      {"open /data/a.bin on 10.0.0.1:80, took 12 ms", "open * on * , took *"},
      {"at Fri Jun 17 07:07:00 2005 from 2607:f140:6000:8:c6b3:1ff:fecd:467f", "at * from *"},
      {"10.1.2.3 \"GET /v2/x HTTP/1.1\" status: 200", "* \" GET * \" status : *"},
      {"auth failure; logname= uid=0 user=root", "auth failure ; logname = * user = *"},
      {"see https://example.org/a?b=c now", "see * now"},
      {"sent 1190 bytes (1.16 KB) in <1 sec", "sent * in *"},
      {"nothing varies here", "nothing varies here"},
      {"", ""},
  };
  for (const auto& [line, want] : cases) EXPECT_EQ(masked(line), want) << line;
}

TEST(Templates, AWordThatTakesManyValuesVaries) {
  TemplateMiner m;
  std::vector<std::uint32_t> groups;
  for (const char* who : {"root", "news", "cyrus", "test"})
    groups.push_back(m.add(std::string("session opened for user ") + who + " by x"));
  for (int i = 0; i < 20; ++i)
    for (const char* what : {"Started", "Paused", "Resumed", "Stopped"})
      groups.push_back(m.add(std::string("instance VM ") + what + " now as wanted"));
  const auto r = m.finish();
  std::set<std::uint32_t> users, events;
  for (std::size_t i = 0; i < groups.size(); ++i) (i < 4 ? users : events).insert(r.merged[groups[i]]);
  EXPECT_EQ(users.size(), 1u);
  EXPECT_EQ(r.templates[*users.begin()], "session opened for user <*> by x");
  EXPECT_EQ(r.lines[*users.begin()], 4u);
  EXPECT_EQ(events.size(), 4u);  // names of events, each often
}

std::vector<std::string> csv_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      if (inside && i + 1 < line.size() && line[i + 1] == '"')
        fields.back() += line[++i];
      else
        inside = !inside;
    } else if (c == ',' && !inside) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

// Labelled logs, where a checkout of them lies beside this one: share of lines grouped exactly right, one
// configuration.
TEST(Templates, LabelledLogs) {
  const std::string root = ORRERY_SOURCE_DIR "/../shared/data/faults/loghub/";
  if (!std::ifstream(root + "REFERENCE.tsv")) {
    std::cout << "SKIP: no labelled logs in ../shared/data\n";
    return;
  }
  double sum = 0;
  const char* sets[] = {"Android",   "Apache",      "BGL",     "HDFS",     "HPC",       "Hadoop",
                        "HealthApp", "Linux",       "Mac",     "OpenSSH",  "OpenStack", "Proxifier",
                        "Spark",     "Thunderbird", "Windows", "Zookeeper"};
  for (const std::string set : sets) {
    std::ifstream in(root + set + "/" + set + "_2k.log_structured.csv");
    std::string line;
    std::getline(in, line);
    const std::vector<std::string> names = csv_fields(line.substr(0, line.find('\r')));
    std::size_t content = 0, event = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == "Content") content = i;
      if (names[i] == "EventId") event = i;
    }
    TemplateMiner m;
    std::vector<std::uint32_t> groups;
    std::vector<std::string> events;
    while (std::getline(in, line)) {
      const std::vector<std::string> f = csv_fields(line);
      if (f.size() <= event) continue;
      groups.push_back(m.add(f[content]));
      events.push_back(f[event]);
    }
    const auto r = m.finish();
    std::map<std::uint32_t, std::vector<std::size_t>> mine;
    std::map<std::string, std::vector<std::size_t>> truth;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      mine[r.merged[groups[i]]].push_back(i);
      truth[events[i]].push_back(i);
    }
    std::size_t right = 0;
    for (const auto& [id, lines] : mine)
      if (truth[events[lines.front()]] == lines) right += lines.size();
    sum += static_cast<double>(right) / static_cast<double>(groups.size());
  }
  EXPECT_GE(sum / 16, 0.90);
}

}  // namespace
}  // namespace orrery
