// `lading convert`
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "lading/convert.h"

namespace lading::cli {

struct ConvertArguments {
  ConvertRequest request;
  SavePlace place;
  bool json = false;
};

CLI::App* add_convert(CLI::App& app, ConvertArguments& arguments);
Exit run_convert(const ConvertArguments& arguments, Output& output);

}  // namespace lading::cli
