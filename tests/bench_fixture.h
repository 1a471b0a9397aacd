// What tests of `orrery bench` share: a model of nearly nothing, and answers as JSON.
#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {

using Json = nlohmann::json;

inline constexpr const char* kTiny = "[models.tiny]\nlayers = 1\nhidden = 16\nffn = 64\nheads = 2\nvocab = 32\n";

inline Json document(const Outcome& o) {
  const Json j = Json::parse(o.out, nullptr, false);
  EXPECT_TRUE(j.is_object()) << o.out << o.err;
  return j;
}

}  // namespace orrery::test
