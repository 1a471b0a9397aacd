// libFuzzer target of what is typed: values of the options of `orrery predict` and tables of costs. The first byte
// chooses the reader; any bytes must give an answer or an error of one line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "costs/cost_table.h"
#include "whatif/edits.h"
#include "whatif/given_layout.h"
#include "whatif/pipeline_steps.h"
#include "whatif/recompute.h"
#include "whatif/search.h"
#include "whatif/target.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class T>
void require_error(const Result<T>& r) {
  if (!r) require(!r.error().what.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0: {
      const auto said = parse_layout(text);
      require_error(said);
      if (!said) break;
      JobLayout layout;
      layout.world = said->tp.value_or(1);
      require_error(apply(*said, layout));
      break;
    }
    case 1: {
      const auto space = parse_search(text);
      require_error(space);
      if (space) require(space->gpus >= 1);
      break;
    }
    case 2: {
      const auto table = parse_cost_table(text, "fuzz");
      require_error(table);
      if (!table) break;
      for (const CostRow& row : table->rows()) {
        const CostRow* found = table->lookup(row.kernel, row.shape);
        require(found != nullptr && found->line == row.line && found->ns > 0);
      }
      break;
    }
    case 3: {
      const auto shape = with_schedule(JobShape{}, text);
      require_error(shape);
      if (shape) require(shape->chunks >= 1);
      break;
    }
    case 4:
      for (const std::string& name : shape_edits()) require_error(check_values({{name, text}}));
      break;
    case 5: {
      JobModel job;  // of which nothing is known
      job.base.layout.layers = 4;
      job.base.layout.num_microbatches = 4;
      job.base.dims = {
          .seq = 8, .mbs = 1, .hidden = 8, .ffn = 8, .heads = 4, .kv_heads = 4, .head_dim = 2, .vocab = 128};
      job.shape.recompute = "none";
      std::map<std::string, std::string> asked;
      std::size_t name = 0;
      for (std::string_view rest = text; !rest.empty();) {  // a value for each option, one a line; empty = not asked
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        if (end > 0 && name < shape_edits().size()) asked[shape_edits()[name]] = std::string(rest.substr(0, end));
        ++name;
        rest.remove_prefix(std::min(rest.size(), end + 1));
      }
      const auto shape = target_shape(job, asked);
      require_error(shape);
      if (shape) {
        require_error(check_shape(*shape));
        (void)describe_shape_edits(job, *shape, asked, {}, {});
        (void)memory_of_job(memory_job(job, *shape));
      }
      break;
    }
    case 6:
      require_error(parse_schedule(text));
      require_error(recompute_of(text));
      break;
    case 7: {
      const auto factor = parse_factor(text);
      require_error(factor);
      if (factor) require(*factor > 0 && *factor < 1e6);
      break;
    }
  }
  return 0;
}
