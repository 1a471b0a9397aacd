/* C interface of the checkpoint library. What the calls mean: checkpoint.h; the files: docs/formats/checkpoint.md.
 *
 * Functions that can fail return 0, or one of ORRERY_CKPT_ERROR and above; orrery_ckpt_last_error() then has one line
 * for this thread. Structs begin with their size, so that fields can be added at their ends: fill them with the _init
 * function, which sets the defaults. Nothing here throws. A writer is used by one thread at a time. */
#ifndef ORRERY_CKPT_H
#define ORRERY_CKPT_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORRERY_CKPT_API_VERSION 1
#define ORRERY_CKPT_MAX_DIMS 8

enum { ORRERY_CKPT_OK = 0, ORRERY_CKPT_ERROR = 1, ORRERY_CKPT_NONE = 2 };
enum { ORRERY_CKPT_FULL = 0, ORRERY_CKPT_SNAPSHOT = 1 };                   /* slots */
enum { ORRERY_CKPT_WAIT = 0, ORRERY_CKPT_SKIP = 1, ORRERY_CKPT_DROP = 2 }; /* when no buffer is free */
enum { ORRERY_CKPT_ACCEPTED = 0, ORRERY_CKPT_SKIPPED = 1 };                /* outcome of a save */
enum { ORRERY_CKPT_HOST = 0, ORRERY_CKPT_CUDA = 1 };                       /* where a tensor is */
enum {
  ORRERY_CKPT_BOOL = 0,
  ORRERY_CKPT_U8,
  ORRERY_CKPT_I8,
  ORRERY_CKPT_F8_E5M2,
  ORRERY_CKPT_F8_E4M3,
  ORRERY_CKPT_I16,
  ORRERY_CKPT_U16,
  ORRERY_CKPT_F16,
  ORRERY_CKPT_BF16,
  ORRERY_CKPT_I32,
  ORRERY_CKPT_U32,
  ORRERY_CKPT_F32,
  ORRERY_CKPT_I64,
  ORRERY_CKPT_U64,
  ORRERY_CKPT_F64
};

typedef struct orrery_ckpt_writer orrery_ckpt_writer;
typedef struct orrery_ckpt_reader orrery_ckpt_reader;

typedef struct {
  size_t struct_size;
  const char* directory;
  int32_t rank, world;
  const char* session; /* NULL or "": see Options::session */
  uint32_t keep_full, keep_snapshot;
  int32_t when_busy;
  uint32_t buffers;
  uint64_t buffer_bytes;
  uint64_t write_bytes_per_second;
  double wait_timeout_s, peer_timeout_s, close_timeout_s;
  int32_t pin, read_back, lock;
} orrery_ckpt_options;

typedef struct {
  const char* name;
  int32_t dtype, place;
  int32_t dims;      /* of shape */
  int32_t split_dim; /* -1: not split */
  int64_t shape[ORRERY_CKPT_MAX_DIMS];
  int64_t offset, whole; /* of a split tensor: where this piece begins, how long all pieces are along split_dim */
  const void* data;
} orrery_ckpt_tensor;

typedef struct {
  size_t struct_size;
  uint64_t saves, accepted, skipped, dropped, written, failed, committed, abandoned, removed;
  uint64_t bytes_copied, bytes_written;
  uint64_t blocked_ns, blocked_max_ns, blocked_last_ns, waited_ns, write_ns, write_last_ns;
  uint64_t buffer_growths, oldest_unwritten_ns;
  int64_t committed_step;
  int32_t pinned;
} orrery_ckpt_stats;

const char* orrery_ckpt_last_error(void);

void orrery_ckpt_options_init(orrery_ckpt_options* options);
int orrery_ckpt_open(const orrery_ckpt_options* options, orrery_ckpt_writer** out);
/* `metadata`: `pairs` times key and value. `outcome` may be NULL. */
int orrery_ckpt_save(orrery_ckpt_writer* writer, int64_t step, int32_t slot, const orrery_ckpt_tensor* tensors,
                     size_t count, const char* const* metadata, size_t pairs, int32_t* outcome);
int orrery_ckpt_wait(orrery_ckpt_writer* writer, double timeout_s);
int orrery_ckpt_get_stats(orrery_ckpt_writer* writer, orrery_ckpt_stats* stats); /* struct_size set by the caller */
int orrery_ckpt_close_within(orrery_ckpt_writer* writer, double timeout_s); /* as close(), for a rank that ends early */
int orrery_ckpt_close(orrery_ckpt_writer* writer); /* frees it, also where it returns an error */

/* `slots`: 1 full, 2 snapshots, 3 both. ORRERY_CKPT_NONE: no checkpoint was ever completed there. */
int orrery_ckpt_newest_good(const char* directory, int32_t slots, orrery_ckpt_reader** out);
int orrery_ckpt_open_id(const char* directory, const char* id, orrery_ckpt_reader** out);
int orrery_ckpt_withdraw_after(const char* directory, const char* id);
void orrery_ckpt_reader_free(orrery_ckpt_reader* reader);
int64_t orrery_ckpt_step(const orrery_ckpt_reader* reader);
int32_t orrery_ckpt_slot(const orrery_ckpt_reader* reader);
int32_t orrery_ckpt_world(const orrery_ckpt_reader* reader);
const char* orrery_ckpt_id(const orrery_ckpt_reader* reader);
size_t orrery_ckpt_rejected_count(const orrery_ckpt_reader* reader);
const char* orrery_ckpt_rejected(const orrery_ckpt_reader* reader, size_t index); /* NULL past the end; so below */
size_t orrery_ckpt_metadata_count(const orrery_ckpt_reader* reader);
const char* orrery_ckpt_metadata_key(const orrery_ckpt_reader* reader, size_t index);
const char* orrery_ckpt_metadata_value(const orrery_ckpt_reader* reader, size_t index);
size_t orrery_ckpt_tensor_count(const orrery_ckpt_reader* reader);
/* Of the whole tensor; data is NULL, name lives as long as the reader. */
int orrery_ckpt_tensor_info(const orrery_ckpt_reader* reader, size_t index, orrery_ckpt_tensor* out);
int orrery_ckpt_verify(const orrery_ckpt_reader* reader, int32_t part, int32_t parts);
/* `bytes`: room at `out`; an error if the box does not fit exactly. */
int orrery_ckpt_read(const orrery_ckpt_reader* reader, const char* name, const int64_t* begin, const int64_t* shape,
                     int32_t dims, void* out, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
