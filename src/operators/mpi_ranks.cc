#include "operators/mpi_ranks.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace orrery {
namespace {

// A communicator, type or operation: in Open MPI the address of an object, in MPICH a number. Both go where a pointer
// goes.
using Handle = std::uintptr_t;

struct Mpi {
  std::string name;
  Handle world = 0, floats = 0, doubles = 0, sum = 0, most = 0;
  void* in_place = nullptr;
  int (*init)(int*, char***) = nullptr;
  int (*finalize)() = nullptr;
  int (*abort)(Handle, int) = nullptr;
  int (*rank)(Handle, int*) = nullptr;
  int (*size)(Handle, int*) = nullptr;
  int (*barrier)(Handle) = nullptr;
  int (*broadcast)(void*, int, Handle, int, Handle) = nullptr;
  int (*all_reduce)(const void*, void*, int, Handle, Handle, Handle) = nullptr;
  int (*all_gather)(const void*, int, Handle, void*, int, Handle, Handle) = nullptr;
  int (*reduce_scatter)(const void*, void*, int, Handle, Handle, Handle) = nullptr;
  int (*all_to_all)(const void*, int, Handle, void*, int, Handle, Handle) = nullptr;
};

bool load(const std::string& library, Mpi& mpi) {
  std::vector<std::string> names = {"libmpi.so.40", "libmpi.so.80", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};
  if (!library.empty()) names = {library};
  for (const std::string& name : names) {
    // Open MPI's plugins look for its symbols among the global ones.
    void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) continue;
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
      return function != nullptr;
    };
    const bool whole = find(mpi.init, "MPI_Init") && find(mpi.finalize, "MPI_Finalize") &&
                       find(mpi.abort, "MPI_Abort") && find(mpi.rank, "MPI_Comm_rank") &&
                       find(mpi.size, "MPI_Comm_size") && find(mpi.barrier, "MPI_Barrier") &&
                       find(mpi.broadcast, "MPI_Bcast") && find(mpi.all_reduce, "MPI_Allreduce") &&
                       find(mpi.all_gather, "MPI_Allgather") && find(mpi.reduce_scatter, "MPI_Reduce_scatter_block") &&
                       find(mpi.all_to_all, "MPI_Alltoall");
    if (!whole) continue;
    mpi.name = name;
    if (void* const world = ::dlsym(handle, "ompi_mpi_comm_world"); world != nullptr) {
      const auto object = [&](const char* symbol) { return reinterpret_cast<Handle>(::dlsym(handle, symbol)); };
      mpi.world = reinterpret_cast<Handle>(world);
      mpi.floats = object("ompi_mpi_float"), mpi.doubles = object("ompi_mpi_double");
      mpi.sum = object("ompi_mpi_op_sum"), mpi.most = object("ompi_mpi_op_max");
      mpi.in_place = reinterpret_cast<void*>(1);
      return true;
    }
    // MPICH's ABI, which Intel's, Cray's and MVAPICH's libraries share.
    mpi.world = 0x44000000, mpi.floats = 0x4c00040a, mpi.doubles = 0x4c00080b;
    mpi.sum = 0x58000003, mpi.most = 0x58000001;
    mpi.in_place = reinterpret_cast<void*>(-1);
    return true;
  }
  return false;
}

class MpiRanks final : public RankGroup {
 public:
  explicit MpiRanks(const Mpi& mpi) : mpi_(mpi) {
    (void)mpi_.rank(mpi_.world, &rank_);
    (void)mpi_.size(mpi_.world, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "MPI, " + mpi_.name; }
  bool meet() override { return mpi_.barrier(mpi_.world) == 0; }
  double of_first(double mine) override {
    return mpi_.broadcast(&mine, 1, mpi_.doubles, 0, mpi_.world) == 0 ? mine : 0;
  }
  double most(double mine) override {
    double all = 0;
    return mpi_.all_reduce(&mine, &all, 1, mpi_.doubles, mpi_.most, mpi_.world) == 0 ? all : 0;
  }
  bool all_reduce(float* data, std::size_t n) override {
    return fits(n) && mpi_.all_reduce(mpi_.in_place, data, static_cast<int>(n), mpi_.floats, mpi_.sum, mpi_.world) == 0;
  }
  bool all_gather(const float* mine, std::size_t each, float* all) override {
    const int n = static_cast<int>(each);
    return fits(each) && mpi_.all_gather(mine, n, mpi_.floats, all, n, mpi_.floats, mpi_.world) == 0;
  }
  bool reduce_scatter(const float* all, std::size_t each, float* mine) override {
    return fits(each) && mpi_.reduce_scatter(all, mine, static_cast<int>(each), mpi_.floats, mpi_.sum, mpi_.world) == 0;
  }
  bool all_to_all(const float* parts, std::size_t each, float* received) override {
    const int n = static_cast<int>(each);
    return fits(each) && mpi_.all_to_all(parts, n, mpi_.floats, received, n, mpi_.floats, mpi_.world) == 0;
  }

 private:
  static bool fits(std::size_t n) { return n <= 0x7fffffff; }
  const Mpi& mpi_;
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::int64_t ranks_of_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = std::getenv(name); value != nullptr && std::atoi(value) > 0) return std::atoi(value);
  return 0;
}

Status run_on_mpi(const std::string& library, const std::function<Status(RankGroup&)>& work) {
  Mpi mpi;
  if (!load(library, mpi)) return fail("no MPI library here", "--transport mpi", "Open MPI's or MPICH's libmpi");
  if (mpi.init(nullptr, nullptr) != 0) return fail("MPI_Init failed", "--transport mpi");
  Status done;
  {
    MpiRanks ranks(mpi);
    done = work(ranks);
    if (!done && ranks.size() > 1) {
      // Others may wait for this rank: the launcher ends them. What is wrong is said first.
      if (ranks.rank() == 0) return done;
      (void)mpi.abort(mpi.world, 2);
    }
  }
  (void)mpi.finalize();
  return done;
}

}  // namespace orrery
