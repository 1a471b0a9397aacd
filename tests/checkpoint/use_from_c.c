/* Compiled as C99 by cli_checkpoint_c_test.cc and linked with the shared library: what a C program sees. */
#include <orrery_ckpt.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(what) \
  if (!(what)) { fprintf(stderr, "line %d: %s; %s\n", __LINE__, #what, orrery_ckpt_last_error()); return 1; }

int main(int argc, char** argv) {
  const char* directory = argc > 1 ? argv[1] : "";
  float weights[6] = {1, 2, 3, 4, 5, 6}, part[2] = {0, 0};
  const char* metadata[] = {"loss", "2.5"};
  const int64_t begin[] = {1, 1}, shape[] = {2, 1};
  int32_t outcome = -1;
  orrery_ckpt_options options;
  orrery_ckpt_writer* writer = NULL;
  orrery_ckpt_reader* reader = NULL;
  orrery_ckpt_tensor tensor, info;
  orrery_ckpt_stats stats;

  EXPECT(orrery_ckpt_newest_good(directory, 3, &reader) == ORRERY_CKPT_NONE);
  orrery_ckpt_options_init(&options);
  EXPECT(orrery_ckpt_open(&options, &writer) == ORRERY_CKPT_ERROR);
  EXPECT(strstr(orrery_ckpt_last_error(), "no directory") != NULL);
  options.directory = directory;
  EXPECT(orrery_ckpt_open(&options, &writer) == ORRERY_CKPT_OK);

  memset(&tensor, 0, sizeof tensor);
  tensor.name = "w";
  tensor.dtype = ORRERY_CKPT_F32;
  tensor.dims = 2;
  tensor.shape[0] = 3;
  tensor.shape[1] = 2;
  tensor.split_dim = -1;
  tensor.data = weights;
  EXPECT(orrery_ckpt_save(writer, 7, ORRERY_CKPT_FULL, &tensor, 1, metadata, 1, &outcome) == ORRERY_CKPT_OK);
  EXPECT(outcome == ORRERY_CKPT_ACCEPTED);
  weights[0] = -1;
  EXPECT(orrery_ckpt_wait(writer, 20) == ORRERY_CKPT_OK);
  tensor.dtype = 99;
  EXPECT(orrery_ckpt_save(writer, 8, ORRERY_CKPT_FULL, &tensor, 1, NULL, 0, NULL) == ORRERY_CKPT_ERROR);
  stats.struct_size = sizeof stats;
  EXPECT(orrery_ckpt_get_stats(writer, &stats) == ORRERY_CKPT_OK);
  EXPECT(stats.committed == 1 && stats.committed_step == 7 && stats.saves == 2 && stats.refused == 1);
  /* A program compiled when the struct was shorter. */
  memset(&stats, 0x7f, sizeof stats);
  stats.struct_size = sizeof(size_t) + sizeof(uint64_t);
  EXPECT(orrery_ckpt_get_stats(writer, &stats) == ORRERY_CKPT_OK);
  EXPECT(stats.saves == 2 && stats.accepted == 0x7f7f7f7f7f7f7f7f); /* one was refused */
  EXPECT(orrery_ckpt_close(writer) == ORRERY_CKPT_OK);

  EXPECT(orrery_ckpt_newest_good(directory, 3, &reader) == ORRERY_CKPT_OK);
  EXPECT(orrery_ckpt_step(reader) == 7 && orrery_ckpt_world(reader) == 1);
  EXPECT(orrery_ckpt_metadata_count(reader) == 1 && strcmp(orrery_ckpt_metadata_value(reader, 0), "2.5") == 0);
  EXPECT(orrery_ckpt_tensor_count(reader) == 1);
  EXPECT(orrery_ckpt_tensor_info(reader, 0, &info) == ORRERY_CKPT_OK);
  EXPECT(strcmp(info.name, "w") == 0 && info.dims == 2 && info.shape[0] == 3);
  EXPECT(orrery_ckpt_read(reader, "w", begin, shape, 2, part, sizeof part) == ORRERY_CKPT_OK);
  EXPECT(part[0] == 4 && part[1] == 6);
  EXPECT(orrery_ckpt_read(reader, "w", begin, shape, 2, part, 4) == ORRERY_CKPT_ERROR);
  orrery_ckpt_reader_free(reader);
  puts("ok");
  return 0;
}
