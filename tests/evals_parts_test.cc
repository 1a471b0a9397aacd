// Parts of orrery evals run: the copy in a node's memory, checkpoints as files, commands, scores, jobs.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "trials/checkpoint_files.h"
#include "trials/coverage.h"
#include "trials/job.h"
#include "trials/node_copy.h"
#include "trials/run_store.h"
#include "trials/scores.h"
#include "trials/words.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

struct Place {
  fs::path path;
  Place() {
    std::string name = (fs::temp_directory_path() / "orrery-evals-XXXXXX").string();
    path = ::mkdtemp(name.data());
    fs::create_directories(path / "memory");
  }
  ~Place() {
    std::error_code ignored;  // what still writes there
    fs::remove_all(path, ignored);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  CopyTerms terms() const { return {path / "memory", 0, 0}; }
};

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}
std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

TEST(EvalsCopy, OneReadsTheOthersWait) {
  Place p;
  write(p / "c/a.bin", std::string(1'000'000, 'a'));
  write(p / "c/deep/b.bin", "b");
  const auto files = look_at_checkpoint(p / "c");
  ASSERT_TRUE(files);
  CopyTerms terms = p.terms();
  terms.bytes_per_s = 10e6;
  std::atomic<int> made = 0, good = 0;
  {
    std::vector<NodeCopy> kept(8);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kept.size(); ++i)
      threads.emplace_back([&, i] {
        bool no_room = false;
        auto copy = acquire_copy(terms, p / "c", *files, no_room);
        if (!copy) return;
        made += copy->made_here;
        good += read(copy->path + "/a.bin") == std::string(1'000'000, 'a') && read(copy->path + "/deep/b.bin") == "b";
        kept[i] = std::move(*copy);
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(made, 1);
    EXPECT_EQ(good, 8);
    EXPECT_EQ(sweep_copies(terms, 0), 0u) << "it is in use";
    EXPECT_TRUE(hold_copy(terms, p / "c", files->fingerprint).held());
  }
  EXPECT_EQ(sweep_copies(terms, 600), 0u) << "used a moment ago";
  EXPECT_EQ(sweep_copies(terms, 0), 1u);
  EXPECT_TRUE(fs::is_empty(p / "memory"));
  EXPECT_FALSE(hold_copy(terms, p / "c", files->fingerprint).held());
}

TEST(EvalsCopy, WhoeverIsToldToStopStopsInMidLoad) {
  Place p;
  write(p / "c/a.bin", std::string(8'000'000, 'a'));
  const auto files = look_at_checkpoint(p / "c");
  ASSERT_TRUE(files);
  CopyTerms terms = p.terms();
  terms.bytes_per_s = 1e6;
  std::atomic<int> looks = 0;
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (std::string& what : said)  // one copies, one waits for it
    threads.emplace_back([&] {
      bool no_room = false;
      const auto copy = acquire_copy(terms, p / "c", *files, no_room, [&] { return ++looks > 40; });
      what = copy ? "" : copy.error().what;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(said, (std::vector<std::string>{"was told to stop", "was told to stop"}));
  EXPECT_EQ(sweep_copies(terms, 0), 0u) << "nothing is left of it";
  EXPECT_TRUE(fs::is_empty(p / "memory"));
}

TEST(EvalsCopy, HeldByAProcessUntilItIsKilled) {
  Place p;
  write(p / "c/a.bin", "a");
  const auto files = look_at_checkpoint(p / "c");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    bool no_room = false;
    const auto copy = acquire_copy(p.terms(), p / "c", *files, no_room);
    (void)!::write(ready[1], copy ? "1" : "0", 1);
    for (;;) ::pause();
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  EXPECT_EQ(c, '1');
  EXPECT_EQ(sweep_copies(p.terms(), 0), 0u);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(sweep_copies(p.terms(), 0), 1u);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(EvalsCopy, WhatIsLeftOfALoadIsDoneAnew) {
  Place p;
  write(p / "c/a.bin", "whole");
  const auto files = look_at_checkpoint(p / "c");
  bool no_room = false;
  std::string copied;
  {
    const auto copy = acquire_copy(p.terms(), p / "c", *files, no_room);
    ASSERT_TRUE(copy);
    copied = copy->path;
  }
  fs::rename(fs::path(copied).parent_path(), fs::path(copied).parent_path().string() + ".part");
  write(fs::path(copied).parent_path().string() + ".part/c/a.bin", "ha");
  auto copy = acquire_copy(p.terms(), p / "c", *files, no_room);
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->made_here);
  EXPECT_EQ(read(copy->path + "/a.bin"), "whole");
  copy->use = {};
  write(copied + "/a.bin", "ha");  // a copy that lost bytes is not used
  copy = acquire_copy(p.terms(), p / "c", *files, no_room);
  ASSERT_TRUE(copy);
  EXPECT_EQ(read(copy->path + "/a.bin"), "whole");
}

TEST(EvalsCopy, AlteredGoneOrTooLarge) {
  Place p;
  write(p / "c/a.bin", "one");
  const auto files = look_at_checkpoint(p / "c");
  bool no_room = false;
  write(p / "c/a.bin", "other");
  EXPECT_EQ(acquire_copy(p.terms(), p / "c", *files, no_room).error().what, "was altered since it was found");
  EXPECT_FALSE(no_room);
  fs::remove_all(p / "c");
  EXPECT_FALSE(acquire_copy(p.terms(), p / "c", *files, no_room));
  EXPECT_FALSE(no_room);

  for (const char* name : {"x/w", "y/w", "z/w"}) write(p / name, std::string(1000, 'w'));
  CopyTerms terms = p.terms();
  terms.most_bytes = 2100;
  const auto copy_of = [&](const char* name) {
    return acquire_copy(terms, p / name, *look_at_checkpoint(p / name), no_room);
  };
  auto x = copy_of("x");
  auto y = copy_of("y");
  ASSERT_TRUE(x && y);
  EXPECT_FALSE(copy_of("z"));
  EXPECT_TRUE(no_room);
  x->use = {};
  EXPECT_TRUE(copy_of("z")) << "what nobody uses makes room";
  EXPECT_TRUE(fs::exists(y->path + "/w"));
  EXPECT_FALSE(fs::exists(x->path));
}

TEST(EvalsCopy, RoomThatIsFreeIsGivenOnce) {
  Place p;
  CopyTerms terms = p.terms();
  terms.most_bytes = 1'500'000;
  std::vector<std::string> sources;
  for (int i = 0; i < 6; ++i) {
    sources.push_back(p / ("c" + std::to_string(i)));
    for (int f = 0; f < 10; ++f) write(sources.back() + "/" + std::to_string(f), std::string(100'000, 'w'));
  }
  for (int round = 0; round < 5; ++round) {
    std::vector<NodeCopy> kept(sources.size());
    std::vector<std::thread> threads;
    std::atomic<int> there = 0, no_rooms = 0;
    for (std::size_t i = 0; i < sources.size(); ++i)
      threads.emplace_back([&, i] {
        const auto files = look_at_checkpoint(sources[i]);
        ++there;
        while (there < static_cast<int>(sources.size())) std::this_thread::yield();
        bool no_room = false;
        if (auto copy = acquire_copy(terms, sources[i], *files, no_room)) kept[i] = std::move(*copy);
        no_rooms += no_room ? 1 : 0;
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(std::count_if(kept.begin(), kept.end(), [](const NodeCopy& c) { return c.use.held(); }), 1);
    EXPECT_EQ(no_rooms, 5);
    kept.clear();
    sweep_copies(terms, 0);
    EXPECT_TRUE(fs::is_empty(p / "memory"));
  }
}

TEST(EvalsCopy, ACheckpointOfTheLibraryIsHeldAgainstItsManifest) {
  Place p;
  const std::vector<float> values(1000, 1.5f);
  {
    ckpt::Options o;
    o.directory = p / "ckpt";
    o.session = "s";
    auto writer = ckpt::Writer::open(o);
    ASSERT_TRUE(writer);
    const ckpt::TensorView t{"w", ckpt::DType::f32, {1000}, values.data()};
    ASSERT_TRUE(writer->save(1, ckpt::Slot::full, std::span(&t, 1), {}));
    ASSERT_TRUE(writer->close());
  }
  const auto names = checkpoints_in(p / "ckpt", "step-*");
  ASSERT_TRUE(names && names->size() == 1u);
  const std::string source = p / ("ckpt/" + names->front());
  bool no_room = false;
  EvalModel model;
  const auto files = look_at_checkpoint(source);
  EXPECT_TRUE(is_complete(source, *files, model).complete);
  ASSERT_TRUE(acquire_copy(p.terms(), source, *files, no_room));
  // One bit in storage: every size is right, and so is what was read back.
  for (const CheckpointFile& f : files->files)
    if (f.name.ends_with(".safetensors")) {
      std::string bytes = read(source + "/" + f.name);
      bytes[bytes.size() - 10] ^= 1;
      write(source + "/" + f.name, bytes);
      // Another time than before, however coarse this file system's clock is.
      fs::last_write_time(source + "/" + f.name, fs::last_write_time(source + "/" + f.name) + std::chrono::seconds(1));
      EXPECT_FALSE(acquire_copy(p.terms(), source, *look_at_checkpoint(source), no_room));
      write(source + "/" + f.name, bytes.substr(0, bytes.size() - 1));
    }
  EXPECT_NE(is_complete(source, *look_at_checkpoint(source), model).why.find(" bytes"), std::string::npos);
  fs::remove(source + "/manifest.json");
  EXPECT_EQ(is_complete(source, *look_at_checkpoint(source), model).why, "has no manifest yet");
}

TEST(EvalsFiles, CompleteByRule) {
  Place p;
  EvalModel model;
  const auto complete = [&](const std::string& name) {
    return is_complete(p / name, *look_at_checkpoint(p / name), model);
  };
  std::string tensors(8, '\0');
  tensors[0] = 56;
  tensors += R"({"w":{"dtype":"U8","shape":[30],"data_offsets":[0,30]}} )" + std::string(30, 'x');
  write(p / "hf/model-1.safetensors", tensors);
  write(p / "hf/model.safetensors.index.json",
        R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  EXPECT_EQ(complete("hf").why, "model-2.safetensors of the index is not there");
  write(p / "hf/model-2.safetensors", tensors.substr(0, 40));
  EXPECT_FALSE(complete("hf").complete);
  write(p / "hf/model-2.safetensors", tensors.substr(0, 80));
  EXPECT_FALSE(complete("hf").complete);
  write(p / "hf/model-2.safetensors", tensors);
  EXPECT_TRUE(complete("hf").complete) << complete("hf").why;
  EXPECT_TRUE(
      is_complete(p / "hf/model-2.safetensors", *look_at_checkpoint(p / "hf/model-2.safetensors"), model).complete);
  write(p / "plain/x", "x");
  EXPECT_TRUE(complete("plain").complete);
  model.complete = CompleteRule::safetensors;
  EXPECT_FALSE(complete("plain").complete);
  model.complete = CompleteRule::marker;
  model.complete_marker = "DONE";
  EXPECT_EQ(complete("plain").why, "has no DONE yet");
  write(p / "plain/DONE", "");
  EXPECT_TRUE(complete("plain").complete);
  write(p / ".hidden/x", "");
  write(p / "b.tmp", "");
  EXPECT_EQ(*checkpoints_in(p.path, "*"), (std::vector<std::string>{"hf", "memory", "plain"}));
  EXPECT_EQ(*checkpoints_in(p.path, "h*"), (std::vector<std::string>{"hf"}));
  EXPECT_TRUE(checkpoints_in(p / "nowhere", "*")->empty());
  EXPECT_FALSE(look_at_checkpoint(p / "memory")) << "no file";
}

TEST(EvalsFiles, WhatCannotBeLookedAtIsNotAbsent) {
  Place p;
  fs::create_symlink("loop", p / "loop");
  EXPECT_TRUE(is_absent(p / "nowhere"));
  EXPECT_FALSE(is_absent(p / "memory"));
  EXPECT_FALSE(is_absent(p / "loop")) << "nobody can say what is there";
  EXPECT_FALSE(checkpoints_in(p / "loop", "*"));
}

TEST(EvalsFiles, TheFingerprintTellsStatesApart) {
  Place p;
  write(p / "c/a", "1");
  const std::string one = look_at_checkpoint(p / "c")->fingerprint;
  EXPECT_EQ(look_at_checkpoint(p / "c")->fingerprint, one);
  fs::rename(p / "c/a", p / "c/b");
  EXPECT_NE(look_at_checkpoint(p / "c")->fingerprint, one);
}

TEST(EvalsFiles, WhatIsCopiedWithItsTimesKeptHasNotSettled) {
  Place p;
  write(p / "c/a.bin", "a");
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(24);
  fs::last_write_time(p / "c/a.bin", old);
  const auto first = look_at_checkpoint(p / "c");
  ASSERT_TRUE(first);
  EXPECT_GT(first->settled_ns, first->files.front().changed_ns + 23 * std::int64_t{3'600'000'000'000});
  fs::permissions(p / "c/a.bin", fs::perms::owner_read);
  EXPECT_EQ(look_at_checkpoint(p / "c")->fingerprint, first->fingerprint) << "of sizes and times of change alone";
}

TEST(EvalsWords, AMetricTakesAllPiecesOfADatasetThatMayBeSplit) {
  const auto check = [](const std::string& metric, const std::string& dataset, const std::string& inference = "") {
    const auto config =
        parse_eval_config("[[model]]\nname = \"m\"\n[inference]\ncommand = [\"x\", \"{output...}\"]\n" + inference +
                              "[metric]\n" + metric + "[[dataset]]\nname = \"d\"\nitems = 10\n" + dataset,
                          "c.toml");
    EXPECT_TRUE(config) << config.error().line();
    const auto ok = check_words(*config);
    return ok ? std::string() : ok.error().line();
  };
  const std::string one = "command = [\"s\", \"{output}\"]\n";
  EXPECT_EQ(check(one, ""),
            "c.toml: [metric] {output} stands for one piece, and there are several ({output...}; or split = false or "
            "metric_by_item = true of dataset d)");
  EXPECT_EQ(check("command = [\"s\"]\nscores_file = \"{outputs}/{first}.json\"\n", "").substr(0, 23),
            "c.toml: [metric] {first");
  EXPECT_EQ(check("command = [\"s\", \"{output...}\", \"{task}\"]\n", ""), "");
  EXPECT_EQ(check(one, "split = false\n"), "");
  EXPECT_EQ(check(one, "metric_by_item = true\n"), "");
  EXPECT_EQ(check(one, "", "splits = false\n"), "");
  EXPECT_EQ(check("scores_file = \"{first}.json\"\n", ""), "") << "the trial scores: of one piece";
}

TEST(EvalsWords, PlaceholdersAreFilled) {
  CommandWords w{"/c/step-1",
                 "step-1",
                 "m",
                 "/o",
                 "/w.json",
                 "/s.json",
                 "/s/samples.json",
                 {{"a", "a_gen", "a_r", 5, 3, "/o/a", {}}}};
  EXPECT_EQ(*fill_words({"x", "{model}", "--t={task},{first}-{last}/{items}", "{output}", "{samples}", "{outputs}",
                         "{scores}{work}", "{\"json\": 1}", "{checkpoint_name}", "{results}"},
                        w),
            (std::vector<std::string>{"x", "{model}", "--t=a_gen,5-7/3", "/o/a", R"({"a_gen":[5,6,7]})", "/o",
                                      "/s.json/w.json", "{\"json\": 1}", "step-1", "a_r"}));
  EXPECT_EQ(fill_words({"{chekpoint}"}, w).error().advice, "did you mean {checkpoint}?");
  w.pieces.push_back({"a", "a_gen", "a_r", 8, 2, "/o/a2"});
  EXPECT_EQ(*fill_words({"{output...}", "{dataset}", "{tasks...}"}, w),
            (std::vector<std::string>{"/o/a", "/o/a2", "a", "a_gen"}));
  EXPECT_FALSE(fill_words({"{output}"}, w));
  w.pieces.push_back({"b", "b_gen", "b_r", 0, 1, "/o/b"});
  EXPECT_EQ(*fill_words({"{datasets}", "{tasks}", "{tasks...}"}, w),
            (std::vector<std::string>{"a,b", "a_gen,b_gen", "a_gen", "b_gen"}));
  EXPECT_FALSE(fill_words({"{task}"}, w));
}

TEST(EvalsWords, InPatternsWhatIsFilledInStandsForItself) {
  Place p;
  for (const char* name : {"st[1]/a*.out", "st[1]/ab.out", "st[1]/sub1.out", "st[1]/sub2.out", "st1/ab.out"})
    write(p / name, "x");
  CommandWords w;
  w.outputs = p / "st[1]";
  w.pieces.push_back({"a*", "a*", "sub*", 0, 1, p / "st[1]/a*.out", {}});
  const auto found = [&](const std::string& pattern) { return files_like(*fill_pattern(pattern, w)); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(found("{output}"), Names{p / "st[1]/a*.out"});
  EXPECT_EQ(found("{outputs}/{dataset}.out"), Names{p / "st[1]/a*.out"});
  EXPECT_EQ(found("{outputs}/{task}.*"), Names{p / "st[1]/a*.out"}) << "its name alone is no pattern";
  EXPECT_EQ(found("{outputs}/{results}.out"), (Names{p / "st[1]/sub1.out", p / "st[1]/sub2.out"}));
  EXPECT_EQ(found("{outputs}/[ab]*").size(), 2u);
  EXPECT_EQ(*fill_word("{output}", w), p / "st[1]/a*.out");
}

TEST(EvalsScores, OfFilesOfTheSameName) {
  Place p;
  const std::string math = p / "out/math/scores.json", code = p / "out/code/scores.json";
  write(math, R"({"acc": 1})");
  write(code, R"({"acc": 0.5})");
  EXPECT_EQ(scores_of_files({code, math}, "")->scores, (Scores{{"code/scores.acc", 0.5}, {"math/scores.acc", 1}}));
  write(p / "x.json", R"({"y.acc": 1})");
  write(p / "x.y.json", R"({"acc": 1})");
  EXPECT_EQ(scores_of_files({p / "x.json", p / "x.y.json"}, "").error().what, "has two scores of the name x.y.acc");
}

TEST(EvalsStore, WhoOnlyLooksWritesNothing) {
  Place p;
  EXPECT_FALSE(*RunStore::look(p / "evals.db"));
  {
    auto store = RunStore::open(p / "evals.db");
    ASSERT_TRUE(store);
    ASSERT_TRUE(store->measured("m", "d", "item n", 3));
  }
  auto store = RunStore::look(p / "evals.db");
  ASSERT_TRUE(store && *store);
  EXPECT_EQ((*store)->priors()->size(), 1u);
  EXPECT_FALSE((*store)->measured("m", "d", "item n", 4));
}

TEST(EvalsScores, FromFilesAndLastLines) {
  Place p;
  write(p / "r/one.json", R"({"results": {"t/x": {"acc,none": 0.5, "alias": "t", "n": 3, "ok": true}}})");
  EXPECT_EQ(scores_of_files({p / "r/one.json"}, "/results/t~1x")->scores,
            (Scores{{"acc,none", 0.5}, {"n", 3}, {"ok", 1}}));
  EXPECT_EQ(scores_of_files({p / "r/one.json"}, "/results/u").error().what, "has nothing at /results/u");
  EXPECT_FALSE(scores_of_files({p / "r/one.json"}, "results"));
  EXPECT_FALSE(scores_of_files({p / "r/one.json"}, "/a~"));
  EXPECT_FALSE(scores_of_files({}, ""));
  write(p / "r/two.json", R"({"scores": {"em": 1}})");
  write(p / "r/three.json", R"({"em": 0.25})");
  EXPECT_EQ(scores_of_files({p / "r/three.json", p / "r/two.json"}, "")->scores,
            (Scores{{"three.em", 0.25}, {"two.em", 1}}));
  write(p / "r/bad.json", "{");
  EXPECT_EQ(scores_of_files({p / "r/bad.json"}, "").error().what, "is not JSON");
  write(p / "log", "talk\n0.75\n\n");
  EXPECT_EQ(scores_of_last_line(p / "log")->scores, (Scores{{"score", 0.75}}));
  write(p / "log", "talk\n{\"b\": 2, \"a\": 1}\r\n");
  EXPECT_EQ(scores_of_last_line(p / "log")->scores, (Scores{{"a", 1}, {"b", 2}}));
  write(p / "log", "talk\n");
  EXPECT_FALSE(scores_of_last_line(p / "log"));
  write(p / "log", "");
  EXPECT_FALSE(scores_of_last_line(p / "log"));
}

TEST(EvalsCoverage, FreeItems) {
  using R = std::vector<ItemRange>;
  EXPECT_EQ(free_items(10, {}), (R{{0, 10}}));
  EXPECT_EQ(free_items(10, {{7, 10}, {0, 3}}), (R{{3, 7}}));
  EXPECT_EQ(free_items(10, {{2, 4}, {3, 8}}), (R{{0, 2}, {8, 10}}));
  EXPECT_EQ(free_items(10, {{0, 10}}), R{});
}

int job_in_a_process(const std::string& directory) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run_job(directory));
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(EvalsJob, AnElementOfAnArraySaysWhichItIs) {
  Place p;
  ::setenv("SLURM_JOB_ID", "77", 1);
  ::setenv("SLURM_ARRAY_JOB_ID", "70", 1);
  ::setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  write(p / "job/x", "");
  ASSERT_TRUE(write_job(p / "job", {.argv = {"true"}}));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run_job(p / "job"));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  for (const char* name : {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"}) ::unsetenv(name);
  const auto owner = read_owner(p / "job");
  ASSERT_TRUE(owner);
  EXPECT_EQ(owner->job, 77);
  EXPECT_EQ(owner->step, "");
  EXPECT_EQ(owner->element, "70_3");
}

TEST(EvalsJob, WhoeverIsFirstHasIt) {
  Place p;
  fs::create_directories(p / "j");
  ASSERT_TRUE(write_job(p / "j", {.argv = {"true"}}));
  EXPECT_TRUE(revoke_job(p / "j"));
  EXPECT_TRUE(revoke_job(p / "j")) << "it is still nobody's";
  EXPECT_EQ(job_in_a_process(p / "j"), 2) << "revoked";
  EXPECT_FALSE(read_result(p / "j"));
  fs::create_directories(p / "k");
  ASSERT_TRUE(write_job(p / "k", {.argv = {"sh", "-c", "echo $X; exit 3"}, .environment = {{"X", "hello"}}}));
  EXPECT_EQ(job_in_a_process(p / "k"), 0);
  EXPECT_FALSE(revoke_job(p / "k"));
  const auto r = read_result(p / "k");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->exit.status, 3);
  EXPECT_EQ(read(p / "k/out.log"), "hello\n");
  EXPECT_GT(read_owner(p / "k")->process.pid, 0);
}

TEST(EvalsJob, ALimitEndsAllThatWasStarted) {
  Place p;
  fs::create_directories(p / "j");
  ASSERT_TRUE(write_job(p / "j", {.argv = {"sh", "-c", "sleep 1000 & echo $! > pid; sleep 1000"}, .limit_s = 3}));
  EXPECT_EQ(job_in_a_process(p / "j"), 0);
  EXPECT_TRUE(read_result(p / "j")->timed_out);
  EXPECT_FALSE(
      is_alive({static_cast<pid_t>(std::stoi(read(p / "j/pid"))), start_time_of(std::stoi(read(p / "j/pid")))}));
}

}  // namespace
}  // namespace orrery
