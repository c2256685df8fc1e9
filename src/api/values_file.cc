#include "api/values_file.h"

namespace lading {

Result<ValuesFile, Errors> ValuesFile::open(const std::string& path) {
  auto source = source::CheckpointSource::open(path, {});
  if (!source) return fail(std::move(source).error());
  return ValuesFile(*std::move(source));
}

Result<HostTensor> ValuesFile::of(const std::string& name) {
  const checkpoint::CatalogTensor* const tensor = source_.catalog().find(name);
  if (tensor == nullptr || !tensor->dtype) {
    return fail(Error(Code::kPlan, "the file with the skeleton's values does not have it")
                    .of_tensor(name)
                    .in_file(source_.catalog().files.front().name)
                    .by_rule("R6")
                    .try_this("Write both again: lading skeleton MODEL -o FILE"));
  }
  auto found = values_.find(name);
  if (found == values_.end()) {
    LADING_ASSIGN_OR_RETURN(const io::File file, source_.open_file(source_.shards()[tensor->file]));
    std::vector<std::byte> bytes(tensor->bytes.end - tensor->bytes.begin);
    LADING_TRY(file.read_exact(tensor->bytes.begin, {reinterpret_cast<char*>(bytes.data()), bytes.size()}));
    found = values_.emplace(name, std::move(bytes)).first;
  }
  return HostTensor{found->second, *tensor->dtype, tensor->shape};
}

}  // namespace lading
