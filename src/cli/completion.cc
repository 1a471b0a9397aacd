// Completion scripts, from the table of commands.
#include <fmt/format.h>
#include <unistd.h>

#include "base/output.h"
#include "cli/command.h"

namespace orrery {
namespace {

std::string names_of_commands() {
  std::string s;
  for (const Command& c : commands()) s += (s.empty() ? "" : " ") + std::string(c.name);
  return s;
}

std::string operands_to_complete(const Command& c) {  // words; "" = files
  if (c.name == "help") return names_of_commands();
  if (c.name == "completion") return "bash zsh fish";
  return {};
}

// Inside single quotes of bash and zsh.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char ch : text) out += ch == '\'' ? std::string("'\\''") : std::string(1, ch);
  return out;
}

std::string bash() {
  std::string out =
      "_orrery() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n";
  out += fmt::format("    COMPREPLY=($(compgen -W '{} --help --version' -- \"$word\"))\n    return\n  fi\n",
                     names_of_commands());
  out += "  case \"${COMP_WORDS[1]} $previous\" in\n";
  for (const Command& c : commands()) {
    for (const OptionSpec& o : c.options) {
      if (o.takes == Takes::word) out += fmt::format("    '{} {}') return ;;\n", c.name, o.name);
      if (o.takes == Takes::directory) {
        out += fmt::format("    '{} {}') COMPREPLY=($(compgen -d -- \"$word\")); return ;;\n", c.name, o.name);
      }
      if (o.takes == Takes::file) {
        out += fmt::format("    '{} {}') COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", c.name, o.name);
      }
    }
  }
  out += "  esac\n  local options='' operands=''\n  case \"${COMP_WORDS[1]}\" in\n";
  for (const Command& c : commands()) {
    std::string options;
    for (const OptionSpec& o : c.options) options += (options.empty() ? "" : " ") + std::string(o.name);
    out += fmt::format("    {}) options='{}' operands='{}' ;;\n", c.name, options, operands_to_complete(c));
  }
  out +=
      "  esac\n"
      "  case \"$word\" in\n"
      "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
      "    *) if [ -n \"$operands\" ]; then COMPREPLY=($(compgen -W \"$operands\" -- \"$word\"))\n"
      "       else COMPREPLY=($(compgen -f -- \"$word\")); fi ;;\n"
      "  esac\n"
      "}\n"
      "complete -o filenames -F _orrery orrery\n";
  return out;
}

std::string zsh() {
  std::string out =
      "#compdef orrery\n"
      "_orrery() {\n"
      "  if (( CURRENT == 2 )); then\n"
      "    local -a commands\n"
      "    commands=(\n";
  for (const Command& c : commands()) out += fmt::format("      '{}:{}'\n", c.name, quoted(c.summary));
  out += "    )\n    _describe command commands\n    return\n  fi\n  case $words[2] in\n";
  for (const Command& c : commands()) {
    out += fmt::format("    {}) _arguments \\\n", c.name);
    for (const OptionSpec& o : c.options) {
      std::string help = quoted(o.help);
      for (const char special : {'[', ']', ':'}) {
        for (std::size_t at = 0; (at = help.find(special, at)) != std::string::npos; at += 2) help.insert(at, "\\");
      }
      const char* action = o.takes == Takes::file        ? ":file:_files"
                           : o.takes == Takes::directory ? ":directory:_files -/"
                           : o.takes == Takes::word      ? ":value: "
                                                         : "";
      out += fmt::format("      '{}{}[{}]{}' \\\n", o.repeatable ? "*" : "", o.name, help, action);
    }
    const std::string words = operands_to_complete(c);
    out += words.empty() ? "      '*:trace:_files' ;;\n" : fmt::format("      '2:which:({})' ;;\n", words);
  }
  out += "  esac\n}\nif [ \"$funcstack[1]\" = _orrery ]; then _orrery \"$@\"; else compdef _orrery orrery; fi\n";
  return out;
}

std::string fish() {
  std::string out = "complete -c orrery -e\n";
  out += "complete -c orrery -n __fish_use_subcommand -f -l version -d 'print the version'\n";
  const auto described = [](std::string_view text) {
    std::string s;
    for (const char ch : text) s += ch == '\'' || ch == '\\' ? std::string("\\") + ch : std::string(1, ch);
    return s;
  };
  for (const Command& c : commands()) {
    out += fmt::format("complete -c orrery -n __fish_use_subcommand -f -a {} -d '{}'\n", c.name, described(c.summary));
    const std::string when = fmt::format("'__fish_seen_subcommand_from {}'", c.name);
    for (const OptionSpec& o : c.options) {
      const char* takes = o.takes == Takes::nothing ? "" : o.takes == Takes::word ? " -x" : " -r -F";
      const bool is_long = o.name.starts_with("--");
      out += fmt::format("complete -c orrery -n {} {} {}{} -d '{}'\n", when, is_long ? "-l" : "-s",
                         o.name.substr(is_long ? 2 : 1), takes, described(o.help));
    }
    const std::string words = operands_to_complete(c);
    if (!words.empty()) out += fmt::format("complete -c orrery -n {} -f -a '{}'\n", when, words);
  }
  return out;
}

}  // namespace

Result<int> run_completion(const Args& args) {
  const std::string& shell = args.positional[0];
  std::string script;
  if (shell == "bash") script = bash();
  if (shell == "zsh") script = zsh();
  if (shell == "fish") script = fish();
  if (script.empty()) return fail("no completion for " + shell, "completion", "bash, zsh or fish");
  if (auto ok = write_all(STDOUT_FILENO, script, "standard output"); !ok) return tl::unexpected(ok.error());
  return kDone;
}

}  // namespace orrery
