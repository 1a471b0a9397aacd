// The files of a checkpoint: what is written byte by byte, and that nothing else is believed.
#include <gtest/gtest.h>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace orrery::ckpt {
namespace {

std::string with_length(const std::string& json, std::size_t data = 0) {
  std::string out(8, '\0');
  out[0] = static_cast<char>(json.size() & 0xff);
  out[1] = static_cast<char>(json.size() >> 8);
  return out + json + std::string(data, 'x');
}

std::string refused(const std::string& json, std::size_t data = 0) {
  const std::string file = with_length(json, data);
  const auto h = read_safetensors_header(file, file.size());
  return h ? "" : h.error().what;
}

TEST(CheckpointFormat, ChecksumIsCrc32c) {
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);  // the check value of RFC 3720's polynomial
  EXPECT_EQ(crc32c("6789", 4, crc32c("12345", 5)), 0xe3069283u);
  EXPECT_EQ(crc32c("", 0), 0u);
}

TEST(CheckpointFormat, SafetensorsHeaderAsOthersReadIt) {
  SafetensorsHeader h;
  h.metadata["format"] = "pt";
  h.tensors.push_back({"w", DType::bf16, {2, 3}, 0, 12});
  const auto text = write_safetensors_header(h);
  ASSERT_TRUE(text);
  EXPECT_EQ(text->size() % 64, 0u);
  EXPECT_EQ(static_cast<unsigned char>((*text)[0]), text->size() - 8);
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})";
  EXPECT_EQ(text->substr(8, json.size()), json);
  EXPECT_EQ(text->find_first_not_of(' ', 8 + json.size()), std::string::npos);  // padded with spaces
  const auto back = read_safetensors_header(*text, text->size() + 12);
  ASSERT_TRUE(back) << back.error().line();
  ASSERT_EQ(back->tensors.size(), 1u);
  EXPECT_EQ(back->tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(back->metadata, h.metadata);
}

TEST(CheckpointFormat, NoTensorsIsAFileToo) {
  const auto text = write_safetensors_header({});
  ASSERT_TRUE(text);
  EXPECT_TRUE(read_safetensors_header(*text, text->size()));
}

TEST(CheckpointFormat, SafetensorsThatLieAreRefused) {
  EXPECT_EQ(refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "");
  EXPECT_NE(refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7), "");    // cut off
  EXPECT_NE(refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9), "");    // more than it says
  EXPECT_NE(refused(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "");    // shape and bytes
  EXPECT_NE(refused(R"({"w":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8), "");    // no such type
  EXPECT_NE(refused(R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "");   // negative
  EXPECT_NE(refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12), "");  // a hole
  EXPECT_NE(refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), "");
  EXPECT_NE(refused(R"({"w":{"dtype":"U8","shape":[4294967296,4294967296,16],"data_offsets":[0,8]}})", 8), "");
  EXPECT_NE(refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"v":{"dtype":"F32","shape":[1],)"
                    R"("data_offsets":[0,4]}})",
                    4),
            "");  // two in one place
  EXPECT_EQ(refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],)"
                    R"("data_offsets":[4,8]}})",
                    8),
            "not a safetensors file: a name stands twice");
  EXPECT_NE(refused("[]"), "");
  EXPECT_NE(refused("{"), "");
  EXPECT_FALSE(read_safetensors_header("1234567", 7));
  EXPECT_FALSE(read_safetensors_header(std::string(8, '\xff'), 8));
}

TensorRecord piece(std::int64_t offset, std::int64_t rows, std::int64_t whole) {
  return {"w", DType::f32, {rows, 2}, 0, offset, whole, 0, static_cast<std::uint64_t>(rows) * 8, 7};
}

Manifest of_pieces(std::vector<TensorRecord> pieces) {
  Manifest m;
  m.attempt = {100, Slot::snapshot, static_cast<int>(pieces.size()), "run-1", 3};
  m.serial = 5;
  m.metadata["loss"] = "2.5";
  int rank = 0;
  for (TensorRecord& p : pieces) {
    const std::uint64_t end = p.end;
    m.shards.push_back({rank++, 64, 64 + end, 9, {std::move(p)}});
  }
  return m;
}

TEST(CheckpointFormat, ManifestComesBackAsItWas) {
  const Manifest m = of_pieces({piece(0, 3, 5), piece(3, 2, 5)});
  const auto text = to_text(m);
  ASSERT_TRUE(text);
  EXPECT_EQ(text->rfind("{\"crc32c\":\"", 0), 0u);
  const auto back = read_manifest(*text);
  ASSERT_TRUE(back) << back.error().line();
  EXPECT_EQ(back->serial, 5u);
  EXPECT_EQ(back->attempt.step, 100);
  EXPECT_EQ(back->attempt.slot, Slot::snapshot);
  EXPECT_EQ(back->metadata.at("loss"), "2.5");
  ASSERT_EQ(back->shards.size(), 2u);
  EXPECT_EQ(back->shards[1].tensors[0].offset, 3);
  EXPECT_EQ(*to_text(*back), *text);
}

TEST(CheckpointFormat, NoByteOfAManifestMayChange) {
  const std::string text = *to_text(of_pieces({piece(0, 3, 5), piece(3, 2, 5)}));
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char flip : {'\x01', '\x20', '\x80'}) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ flip);
      EXPECT_FALSE(read_manifest(other)) << "byte " << i;
    }
    EXPECT_FALSE(read_manifest(text.substr(0, i)));
  }
  EXPECT_FALSE(read_manifest(text + "\n"));
  EXPECT_FALSE(read_receipt(text));
}

TEST(CheckpointFormat, PiecesMustTileTheirTensor) {
  EXPECT_TRUE(check(of_pieces({piece(3, 2, 5), piece(0, 3, 5)})));  // in any order
  EXPECT_TRUE(check(of_pieces({piece(0, 5, 5), piece(5, 0, 5)})));  // a rank may have nothing
  EXPECT_FALSE(check(of_pieces({piece(0, 2, 5), piece(3, 2, 5)})));
  EXPECT_FALSE(check(of_pieces({piece(0, 3, 5), piece(2, 3, 5)})));
  EXPECT_FALSE(check(of_pieces({piece(0, 3, 5), piece(3, 1, 5)})));
  EXPECT_FALSE(check(of_pieces({piece(0, 3, 5), piece(3, 2, 6)})));
}

TEST(CheckpointFormat, CopiesMustAgree) {
  TensorRecord copy = piece(0, 5, 0);
  copy.split_dim = -1;
  TensorRecord other = copy;
  EXPECT_TRUE(check(of_pieces({copy, other})));
  other.crc32c = 8;
  const auto bad = check(of_pieces({copy, other}));
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().what.find("different values of tensor w"), std::string::npos);
}

TEST(CheckpointFormat, ShardsAreNamedByRankAlone) {
  std::string text = *to_text(of_pieces({piece(0, 5, 5)}));
  const std::string name = "rank-00000.safetensors";
  text.replace(text.find(name), name.size(), "../../etc/passwd-or-so");
  const std::size_t body = text.find("\"manifest\":") + 11;
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", crc32c(text.data() + body, text.size() - body - 2));
  text.replace(11, 8, crc);
  const auto m = read_manifest(text);
  ASSERT_FALSE(m);
  EXPECT_NE(m.error().what.find("another name than its rank"), std::string::npos);
}

}  // namespace
}  // namespace orrery::ckpt
