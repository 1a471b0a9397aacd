// Manual pages, from the table of commands.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/closest.h"
#include "base/output.h"
#include "cli/command.h"

namespace orrery {
namespace {

constexpr std::size_t kWidth = 80;

// Fills paragraphs (separated by a blank line) to the width, each line indented.
std::string filled(std::string_view text, std::size_t indent) {
  std::string out, line;
  const auto flush = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  for (std::size_t i = 0; i < text.size();) {
    if (text.substr(i, 2) == "\n\n") {
      flush();
      out += "\n";
      i += 2;
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(" \n", i), text.size());
    const std::string_view word = text.substr(i, end - i);
    if (!line.empty() && indent + line.size() + 1 + word.size() > kWidth) flush();
    if (!line.empty()) line += ' ';
    line += word;
    i = end < text.size() && text[end] == ' ' ? end + 1 : end;
  }
  flush();
  return out;
}

std::string synopsis(const Command& c) {
  std::string s = fmt::format("orrery {}", c.name);
  if (!c.operands.empty()) s += fmt::format(" {}", c.operands);
  for (const OptionSpec& o : c.options) {
    if (o.name != "--help")
      s += o.value.empty() ? fmt::format(" [{}]", o.name) : fmt::format(" [{} {}]", o.name, o.value);
  }
  return s;
}

}  // namespace

std::string help_overview() {
  std::string out = "orrery models LLM training and serving performance.\n\nusage: orrery COMMAND [OPTION...]\n\n";
  for (const Command& c : commands()) out += fmt::format("  {:<12}{}\n", c.name, c.summary);
  out += "\n`orrery help COMMAND` prints the page of a command, `orrery --version` the version.\n";
  out += "Words in tables are cut for the width of the terminal; elsewhere for 100 columns, or what COLUMNS says.\n";
  return out;
}

std::string man_page(const Command& c) {
  std::string out = fmt::format("NAME\n  orrery {} - {}\n\nSYNOPSIS\n", c.name, c.summary);
  out += filled(synopsis(c), 2) + "\nDESCRIPTION\n" + filled(c.description, 2) + "\nOPTIONS\n";
  for (const OptionSpec& o : c.options) {
    const std::string name = o.name == "--help" ? "-h, --help" : std::string(o.name);
    out += o.value.empty() ? fmt::format("  {}\n", name) : fmt::format("  {} {}\n", name, o.value);
    out += filled(o.help, 6);
  }
  out += "\nEXIT STATUS\n  0  done\n";
  if (!c.when_incomplete.empty()) out += fmt::format("  1  {}\n", c.when_incomplete);
  out += "  2  the input or the options cannot be used; one line on standard error says why\n";
  out += "\nEXAMPLES\n";
  for (const Example& e : c.examples) {
    if (!e.text.empty()) out += filled(e.text, 2);
    out += fmt::format("      {}\n", e.command);
  }
  return out;
}

Result<int> run_help(const Args& args) {
  std::string text = help_overview();
  if (!args.positional.empty()) {
    const std::string& name = args.positional[0];
    const Command* c = find_command(name);
    if (!c) {
      std::vector<std::string_view> names;
      for (const Command& known : commands()) names.push_back(known.name);
      const std::string_view near = closest(name, names);
      return fail("unknown command " + name, "help",
                  near.empty() ? "orrery help lists them" : "did you mean " + std::string(near) + "?");
    }
    text = man_page(*c);
  }
  if (auto ok = write_all(STDOUT_FILENO, text, "standard output"); !ok) return tl::unexpected(ok.error());
  return kDone;
}

}  // namespace orrery
