// `lading doctor`
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "lading/doctor.h"

namespace lading::cli {

struct DoctorArguments {
  DoctorRequest request;
  bool json = false;
};

CLI::App* add_doctor(CLI::App& app, DoctorArguments& arguments);
Exit run_doctor(const DoctorArguments& arguments, Output& output);

}  // namespace lading::cli
