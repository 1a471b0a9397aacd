// The only file that includes CLI11: it is heavy.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/closest.h"
#include "cli/command.h"

namespace orrery {
namespace {

std::string one_line(std::string s) {
  std::replace(s.begin(), s.end(), '\n', ' ');
  return s;
}

std::string see_help(const Command& command) { return "see orrery help " + std::string(command.name); }

tl::unexpected<Error> unknown_option(const Command& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string_view> names;
  for (const OptionSpec& o : command.options) names.push_back(o.name);
  const std::string_view near = closest(name, names);
  return fail("unknown option " + name, std::string(command.name),
              near.empty() ? see_help(command) : "did you mean " + std::string(near) + "?");
}

}  // namespace

Result<Args> parse(const Command& command, const std::vector<std::string>& words) {
  CLI::App app;
  app.set_help_flag();  // --help is one of our own options
  app.allow_extras();   // we name the unknown option ourselves
  Args args;
  std::map<std::string_view, std::vector<std::string>> values;
  std::map<std::string_view, CLI::Option*> options;
  for (const OptionSpec& o : command.options) {
    const std::string names = o.name == "--help" ? "-h,--help" : std::string(o.name);
    options[o.name] = o.value.empty() ? app.add_flag(names)
                                      : app.add_option(names, values[o.name])->allow_extra_args(false)->take_all();
  }
  app.add_option("operands", args.positional)->required(false);
  try {
    const auto dashes = std::find(words.begin(), words.end(), "--");
    std::vector<std::string> reversed(words.begin(), dashes);
    std::reverse(reversed.begin(), reversed.end());  // as CLI11 wants them
    app.parse(reversed);
    // What follows is taken as it stands, also another "--".
    if (dashes != words.end()) {
      args.before_dashes = args.positional.size();
      args.positional.insert(args.positional.end(), dashes + 1, words.end());
    }
  } catch (const CLI::ArgumentMismatch& e) {
    for (const OptionSpec& o : command.options) {
      if (!std::string_view(e.what()).starts_with(std::string(o.name) + ":")) continue;
      return fail("option " + std::string(o.name) + " needs a value", std::string(command.name),
                  std::string(o.name) + " " + std::string(o.value));
    }
    return fail(one_line(e.what()), std::string(command.name), see_help(command));
  } catch (const CLI::ParseError& e) {
    return fail(one_line(e.what()), std::string(command.name), see_help(command));
  }
  for (const OptionSpec& o : command.options) {
    if (options[o.name]->count() == 0) continue;
    const auto& given = args.options[std::string(o.name)] = values[o.name];
    const auto& words_of_flag = options[o.name]->results();
    if (o.value.empty() &&
        std::any_of(words_of_flag.begin(), words_of_flag.end(), [](auto& w) { return w != "true"; })) {
      return fail("option " + std::string(o.name) + " takes no value", std::string(command.name), see_help(command));
    }
    if (!o.repeatable && given.size() > 1) {
      return fail("option " + std::string(o.name) + " is given twice", std::string(command.name), "give it once");
    }
    if (!o.value.empty() && std::any_of(given.begin(), given.end(), [](const auto& v) { return v.empty(); })) {
      return fail("option " + std::string(o.name) + " is empty", std::string(command.name),
                  "give " + std::string(o.value));
    }
  }
  for (const std::string& extra : app.remaining()) {
    if (extra.size() > 1 && extra[0] == '-' && extra != "--") return unknown_option(command, extra);
  }
  if (args.has("--help")) return args;
  if (args.positional.size() < command.least) {
    return fail("needs " + std::string(command.operands), std::string(command.name), see_help(command));
  }
  if (args.positional.size() > command.most) {
    return fail("too many operands: " + args.positional[command.most], std::string(command.name),
                "takes " + (command.operands.empty() ? std::string("none") : std::string(command.operands)));
  }
  return args;
}

}  // namespace orrery
