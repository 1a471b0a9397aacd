/* Compiled as C99 by cli_checkpoint_c_test.cc and linked with the shared library: what a C program sees. */
#include <orrery_ckpt.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(what) \
  if (!(what)) { fprintf(stderr, "line %d: %s; %s\n", __LINE__, #what, orrery_ckpt_last_error()); return 1; }

#define REFUSES(call, text) \
  if ((call) != ORRERY_CKPT_ERROR || strstr(orrery_ckpt_last_error(), text) == NULL) { \
    fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, orrery_ckpt_last_error()); \
    return 1; \
  }

/* What C lets pass: pointers that are not there, numbers that mean nothing. `t` is a good tensor "w" of [3, 2]. */
static int refusals(const char* directory, orrery_ckpt_writer* w, const orrery_ckpt_tensor* t, uint64_t* refused) {
  orrery_ckpt_options o;
  orrery_ckpt_writer* other = NULL;
  orrery_ckpt_reader* r = NULL;
  orrery_ckpt_tensor b;
  orrery_ckpt_stats stats;
  const char *half[] = {"k", NULL}, *twice[] = {"k", "a", "k", "b"}, *bytes[] = {"k", "\xff"};

  orrery_ckpt_options_init(NULL);
  orrery_ckpt_options_init(&o);
  o.directory = directory;
  REFUSES(orrery_ckpt_open(NULL, &other), "options is NULL");
  REFUSES(orrery_ckpt_open(&o, NULL), "out is NULL");
  o.struct_size = 0;
  REFUSES(orrery_ckpt_open(&o, &other), "struct_size");
  REFUSES(orrery_ckpt_save(NULL, 1, 0, t, 1, NULL, 0, NULL), "writer is NULL");
  REFUSES(orrery_ckpt_wait(NULL, 1), "writer is NULL");
  REFUSES(orrery_ckpt_refuse(NULL, 1, 0, "why"), "writer is NULL");
  REFUSES(orrery_ckpt_get_stats(NULL, &stats), "writer is NULL");
  REFUSES(orrery_ckpt_get_stats(w, NULL), "stats is NULL");
  orrery_ckpt_hurry(NULL, 1);

#define BAD(change, text) \
  b = *t; \
  change; \
  REFUSES(orrery_ckpt_save(w, 8, ORRERY_CKPT_FULL, &b, 1, NULL, 0, NULL), text); \
  ++*refused
  BAD(b.name = NULL, "name is NULL");
  BAD(b.name = "a\xff", "is not UTF-8");
  BAD(b.dtype = 99, "dtype is none of");
  BAD(b.dims = -1, "dims is negative");
  BAD(b.dims = 9, "more than eight dimensions");
  BAD(b.place = 7, "place is neither");
  BAD(b.split_dim = -7, "split_dim is negative");
  BAD(b.data = NULL, "has no data");
  REFUSES(orrery_ckpt_save(w, 8, 5, t, 1, NULL, 0, NULL), "slot is neither");
  REFUSES(orrery_ckpt_save(w, -8, 0, t, 1, NULL, 0, NULL), "step -8 is negative");
  REFUSES(orrery_ckpt_save(w, 8, 0, NULL, 1, NULL, 0, NULL), "tensors is NULL");
  REFUSES(orrery_ckpt_save(w, 8, 0, t, 1, NULL, 1, NULL), "metadata is NULL");
  REFUSES(orrery_ckpt_save(w, 8, 0, t, 1, half, 1, NULL), "text of the metadata is NULL");
  REFUSES(orrery_ckpt_save(w, 8, 0, t, 1, twice, 2, NULL), "stands twice");
  REFUSES(orrery_ckpt_save(w, 8, 0, t, 1, bytes, 1, NULL), "value of the metadata is not UTF-8");
  REFUSES(orrery_ckpt_refuse(w, 8, 0, "a reason of the caller"), "a reason of the caller");
  *refused += 8;

  REFUSES(orrery_ckpt_newest_good(NULL, 3, &r), "directory is NULL");
  REFUSES(orrery_ckpt_newest_good("", 3, &r), "no directory");
  REFUSES(orrery_ckpt_newest_good(directory, 0, &r), "slots is none of");
  REFUSES(orrery_ckpt_newest_good(directory, 99, &r), "slots is none of");
  REFUSES(orrery_ckpt_newest_good(directory, 3, NULL), "out is NULL");
  REFUSES(orrery_ckpt_open_id(directory, NULL, &r), "id is NULL");
  REFUSES(orrery_ckpt_open_id(directory, "", &r), "no name of a checkpoint");
  REFUSES(orrery_ckpt_withdraw_after(NULL, NULL), "directory is NULL");
  REFUSES(orrery_ckpt_tensor_info(NULL, 0, &b), "reader is NULL");
  REFUSES(orrery_ckpt_verify(NULL, 0, 1), "reader is NULL");
  REFUSES(orrery_ckpt_read(NULL, "w", NULL, NULL, 0, &b, 0), "reader is NULL");
  EXPECT(orrery_ckpt_step(NULL) == -1 && orrery_ckpt_slot(NULL) == -1 && orrery_ckpt_world(NULL) == 0);
  EXPECT(orrery_ckpt_id(NULL) == NULL && orrery_ckpt_tensor_count(NULL) == 0 && orrery_ckpt_rejected_count(NULL) == 0);
  EXPECT(orrery_ckpt_metadata_key(NULL, 0) == NULL && orrery_ckpt_metadata_count(NULL) == 0);
  EXPECT(orrery_ckpt_rejected(NULL, 0) == NULL && orrery_ckpt_metadata_value(NULL, 0) == NULL);
  orrery_ckpt_reader_free(NULL);
  return 0;
}

int main(int argc, char** argv) {
  const char* directory = argc > 1 ? argv[1] : "";
  float weights[6] = {1, 2, 3, 4, 5, 6}, part[2] = {0, 0};
  const char* metadata[] = {"loss", "2.5"};
  const int64_t begin[] = {1, 1}, shape[] = {2, 1};
  int32_t outcome = -1;
  uint64_t refused = 0;
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
  if (refusals(directory, writer, &tensor, &refused) != 0) return 1;
  stats.struct_size = sizeof stats;
  EXPECT(orrery_ckpt_get_stats(writer, &stats) == ORRERY_CKPT_OK);
  EXPECT(stats.committed == 1 && stats.committed_step == 7);
  EXPECT(refused == 16 && stats.refused == refused && stats.saves == refused + 1);
  /* A program compiled when the struct was shorter. */
  memset(&stats, 0x7f, sizeof stats);
  stats.struct_size = sizeof(size_t) + sizeof(uint64_t);
  EXPECT(orrery_ckpt_get_stats(writer, &stats) == ORRERY_CKPT_OK);
  EXPECT(stats.saves == refused + 1 && stats.accepted == 0x7f7f7f7f7f7f7f7f);
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
  REFUSES(orrery_ckpt_read(reader, NULL, begin, shape, 2, part, sizeof part), "name is NULL");
  REFUSES(orrery_ckpt_read(reader, "w", NULL, shape, 2, part, sizeof part), "begin or shape is NULL");
  REFUSES(orrery_ckpt_read(reader, "w", begin, shape, 2, NULL, sizeof part), "out is NULL");
  REFUSES(orrery_ckpt_read(reader, "w", begin, shape, -1, part, sizeof part), "another number of dimensions");
  REFUSES(orrery_ckpt_tensor_info(reader, 1, &info), "index is not below");
  REFUSES(orrery_ckpt_tensor_info(reader, 0, NULL), "out is NULL");
  REFUSES(orrery_ckpt_verify(reader, 1, 1), "no part 1 of 1");
  orrery_ckpt_reader_free(reader);
  puts("ok");
  return 0;
}
