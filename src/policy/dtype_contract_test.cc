// The contract's own small tests. dtype_table_test.cc has the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy/policy.h"

namespace lading::policy {
namespace {

using model::Kind;
using model::PinStrength;
using model::Presence;
using ::testing::HasSubstr;

constexpr PinStrength kStrict = PinStrength::kFloat16AndBFloat16;

Policy request(std::optional<DType> dtype, Cast cast = Cast::kPromote) {
  Policy policy;
  policy.dtype = dtype;
  policy.cast = cast;
  return policy;
}

Policy computing_in(DType compute) {
  Policy policy;
  policy.compute_dtype = compute;
  return policy;
}

DTypeQuestion from_file(DType checkpoint) { return {.name = "t", .checkpoint = checkpoint}; }

DType storage(const Policy& policy, const DTypeQuestion& question) {
  const auto decision = decide_dtype(policy, question);
  EXPECT_TRUE(decision) << decision.error().text();
  return decision ? decision->storage : DType::kBool;
}

DType compute(const Policy& policy, const DTypeQuestion& question) {
  const auto decision = decide_dtype(policy, question);
  EXPECT_TRUE(decision) << decision.error().text();
  return decision ? decision->compute : DType::kBool;
}

Error refusal(const Policy& policy, const DTypeQuestion& question) {
  const auto decision = decide_dtype(policy, question);
  EXPECT_FALSE(decision);
  return decision ? Error() : Error(decision.error());
}

TEST(DTypeContract, R22_AutoMirrorsAMixedFile) {
  for (const DType dtype : all_dtypes()) EXPECT_EQ(storage(request({}), from_file(dtype)), dtype) << name(dtype);
  EXPECT_EQ(decide_dtype(request({}), from_file(DType::kF32))->storage_rule, "R22");
}

TEST(DTypeContract, R23_AnExplicitRequestNeverNarrows) {
  EXPECT_EQ(storage(request(DType::kBF16), from_file(DType::kF32)), DType::kF32) << "A_log";
  EXPECT_EQ(storage(request(DType::kF32), from_file(DType::kBF16)), DType::kF32) << "fp32 masters";
  EXPECT_EQ(storage(request(DType::kBF16), from_file(DType::kBF16)), DType::kBF16);
  EXPECT_EQ(storage(request(DType::kF16), from_file(DType::kBF16)), DType::kF32);
  EXPECT_EQ(storage(request(DType::kF64), from_file(DType::kF16)), DType::kF64);
}

TEST(DTypeContract, R23_Float8WithAnotherDtypeIsAnErrorThatNamesTheTensor) {
  const Error error = refusal(request(DType::kBF16), from_file(DType::kF8E4M3));
  EXPECT_EQ(error.code, Code::kDType);
  EXPECT_EQ(error.rule, "R23");
  EXPECT_EQ(error.tensor, "t");
  EXPECT_THAT(error.remedy, HasSubstr(R"("subtree_dtypes": {"t": "auto"})")) << "as it is to be written";
  EXPECT_EQ(storage(request(DType::kF8E4M3), from_file(DType::kF8E4M3)), DType::kF8E4M3);
  refusal(request(DType::kF8E4M3), from_file(DType::kBF16));
}

TEST(DTypeContract, R23_WhatIsNotFloatingStays) {
  for (const Cast cast : {Cast::kPromote, Cast::kExact, Cast::kDestination}) {
    for (const DType dtype : {DType::kI64, DType::kU8, DType::kBool, DType::kC64}) {
      DTypeQuestion question = from_file(dtype);
      question.pinned = kStrict;  // num_batches_tracked under a pin on its batch norm
      EXPECT_EQ(storage(request(DType::kBF16, cast), question), dtype) << name(dtype);
    }
  }
}

TEST(DTypeContract, R23_ExactNarrowsBecauseItWasSaid) {
  EXPECT_EQ(storage(request(DType::kBF16, Cast::kExact), from_file(DType::kF32)), DType::kBF16);
  EXPECT_EQ(storage(request(DType::kF16, Cast::kExact), from_file(DType::kBF16)), DType::kF16);
  EXPECT_EQ(storage(request({}, Cast::kExact), from_file(DType::kF32)), DType::kF32) << "auto";
}

TEST(DTypeContract, R24_OneConversionFromTheFilesBits) {
  // 1 + 2^-10 is exact in F32 and not in BF16: under a BF16 request it is never anything but F32.
  const auto decision = decide_dtype(request(DType::kBF16), from_file(DType::kF32));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->storage, DType::kF32);
  EXPECT_EQ(decision->compute, DType::kF32);
}

TEST(DTypeContract, R24_WhatCannotBeConvertedIsRefused) {
  DTypeQuestion question = from_file(DType::kF32);
  question.constructed = DType::kI64;
  question.presence = Presence::kEmpty;
  EXPECT_EQ(refusal(request({}, Cast::kDestination), question).rule, "R24");
}

TEST(DTypeContract, R48_PackedPayloadsAndBlockScalesAreNotConverted) {
  EXPECT_EQ(refusal(request(DType::kBF16, Cast::kExact), from_file(DType::kF4)).rule, "R48");
  EXPECT_EQ(refusal(request(DType::kBF16, Cast::kExact), from_file(DType::kF8E8M0)).rule, "R48");
  EXPECT_EQ(storage(request(DType::kBF16, Cast::kExact), from_file(DType::kF8E4M3)), DType::kBF16) << "it was said";
}

TEST(DTypeContract, R25_PinsUnderAnExplicitRequest) {
  struct Row {
    PinStrength pin;
    DType requested;
    DType stored;
  };
  // transformers' _get_dtype_plan: the weak list for fp16 only, the strict one for fp16 and bf16.
  for (const Row& row :
       {Row{PinStrength::kFloat16, DType::kF16, DType::kF32}, Row{PinStrength::kFloat16, DType::kBF16, DType::kBF16},
        Row{kStrict, DType::kF16, DType::kF32}, Row{kStrict, DType::kBF16, DType::kF32},
        Row{kStrict, DType::kF32, DType::kF32}, Row{kStrict, DType::kF64, DType::kF64}}) {
    DTypeQuestion question = from_file(DType::kBF16);
    question.pinned = row.pin;
    EXPECT_EQ(storage(request(row.requested, Cast::kExact), question), row.stored) << name(row.requested);
  }
}

TEST(DTypeContract, R25_PinsUnderPromoteAndAuto) {
  DTypeQuestion question = from_file(DType::kBF16);
  question.pinned = kStrict;
  EXPECT_EQ(storage(request(DType::kBF16), question), DType::kF32);
  EXPECT_EQ(storage(request({}), question), DType::kF32);
  question.pinned = PinStrength::kFloat16;
  EXPECT_EQ(storage(request(DType::kBF16), question), DType::kBF16);
  EXPECT_EQ(storage(request({}), question), DType::kBF16);
  question.checkpoint = DType::kF16;
  EXPECT_EQ(storage(request({}), question), DType::kF32);
  question.checkpoint = DType::kF8E4M3;
  EXPECT_EQ(storage(request({}), question), DType::kF8E4M3) << "a payload without its scale is not a weight";
}

TEST(DTypeContract, R26_ComputePrecedence) {
  const Policy policy = computing_in(DType::kBF16);
  const DTypeQuestion projection{.name = "proj", .constructed = DType::kF32, .requires_grad = true};
  const DTypeQuestion gate{.name = "shared_expert_gate", .constructed = DType::kBF16, .requires_grad = true};
  DTypeQuestion a_log{.name = "A_log", .constructed = DType::kF32, .pinned = kStrict, .requires_grad = true};
  EXPECT_EQ(compute(policy, projection), DType::kBF16);
  EXPECT_EQ(compute(policy, gate), DType::kBF16);
  EXPECT_EQ(compute(policy, a_log), DType::kF32);
  a_log.checkpoint = DType::kBF16;
  EXPECT_EQ(compute(policy, a_log), DType::kF32) << "a pin beats a wrong record";
}

// The rule's own test, from a file: it holds if the record is not looked at (ADR 0004).
TEST(DTypeContract, R26_WithTheRecordIgnoredThePolicyDecidesForAnF32File) {
  Policy policy = computing_in(DType::kBF16);
  DTypeQuestion a_log = from_file(DType::kF32);
  a_log.pinned = kStrict;
  EXPECT_EQ(compute(policy, from_file(DType::kF32)), DType::kF32) << "the rule's text: the record goes first";
  EXPECT_EQ(compute(policy, from_file(DType::kBF16)), DType::kBF16);
  EXPECT_EQ(compute(policy, a_log), DType::kF32);

  policy.compute_record = ComputeRecord::kIgnore;
  EXPECT_EQ(compute(policy, from_file(DType::kF32)), DType::kBF16) << "projections";
  EXPECT_EQ(compute(policy, from_file(DType::kBF16)), DType::kBF16) << "shared_expert_gate";
  EXPECT_EQ(compute(policy, a_log), DType::kF32) << "pinned";
  EXPECT_EQ(storage(policy, from_file(DType::kF32)), DType::kF32) << "masters stay masters";
  EXPECT_EQ(compute(policy, from_file(DType::kF64)), DType::kF64) << "the storage's own";
  EXPECT_EQ(compute(policy, from_file(DType::kF8E4M3)), DType::kF8E4M3);
  EXPECT_EQ(compute(policy, from_file(DType::kI64)), DType::kI64);
  policy.dtype = DType::kF32;
  EXPECT_EQ(compute(policy, from_file(DType::kF16)), DType::kBF16) << "stored as F32, so the policy's";
}

TEST(DTypeContract, R26_TheRecordIsOlderThanTheWidening) {
  Policy policy = computing_in(DType::kBF16);
  policy.dtype = DType::kF32;
  const auto masters = decide_dtype(policy, from_file(DType::kBF16));
  ASSERT_TRUE(masters);
  EXPECT_EQ(masters->storage, DType::kF32);
  EXPECT_EQ(masters->compute, DType::kBF16);
  const auto intrinsic = decide_dtype(policy, from_file(DType::kF32));
  ASSERT_TRUE(intrinsic);
  EXPECT_EQ(intrinsic->compute, DType::kF32);
}

TEST(DTypeContract, R26_WithoutAPolicyItIsTheStorage) {
  EXPECT_EQ(compute(request(DType::kF32), from_file(DType::kBF16)), DType::kF32);
  EXPECT_EQ(compute(computing_in(DType::kBF16), from_file(DType::kI64)), DType::kI64);
  EXPECT_EQ(compute(computing_in(DType::kF32), from_file(DType::kBF16)), DType::kBF16);
}

TEST(DTypeContract, R28_FrozenTowers) {
  const Policy policy = computing_in(DType::kBF16);
  DTypeQuestion std_bias = from_file(DType::kF32);
  std_bias.kind = Kind::kBuffer;
  EXPECT_EQ(storage(policy, std_bias), DType::kF32) << "a trainable tower is untouched";
  std_bias.frozen = true;
  EXPECT_EQ(storage(policy, std_bias), DType::kBF16);
  EXPECT_EQ(decide_dtype(policy, std_bias)->storage_rule, "R28");
  std_bias.pinned = kStrict;
  EXPECT_EQ(storage(policy, std_bias), DType::kF32) << "a pinned sibling";

  DTypeQuestion weight = from_file(DType::kF32);
  weight.frozen = true;
  EXPECT_EQ(storage(policy, weight), DType::kBF16);
  EXPECT_EQ(compute(policy, weight), DType::kBF16);
  EXPECT_EQ(storage(request({}), weight), DType::kF32) << "no compute dtype, no cast";
  weight.pinned = kStrict;
  EXPECT_EQ(storage(policy, weight), DType::kF32);
  EXPECT_EQ(compute(policy, weight), DType::kF32);
}

TEST(DTypeContract, R28_AFrozenTowerIsComputedInOneDtype) {
  for (const DType compute_dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const Policy policy = computing_in(compute_dtype);
    for (const Kind kind : {Kind::kParameter, Kind::kBuffer}) {
      for (const DType checkpoint : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const Presence presence : {Presence::kMeta, Presence::kEmpty, Presence::kReal}) {
          DTypeQuestion question = from_file(checkpoint);
          question.kind = kind;
          question.frozen = true;
          question.presence = presence;
          question.constructed = DType::kF32;
          const bool fixed = presence != Presence::kMeta;
          EXPECT_EQ(storage(policy, question), fixed ? DType::kF32 : compute_dtype) << "memory stays what it is";
          EXPECT_EQ(compute(policy, question), compute_dtype) << name(checkpoint);
        }
      }
    }
    const DTypeQuestion kept{.name = "w", .presence = Presence::kReal, .frozen = true};
    EXPECT_EQ(storage(policy, kept), DType::kF32);
    EXPECT_EQ(compute(policy, kept), compute_dtype);
  }
  DTypeQuestion payload = from_file(DType::kF8E4M3);
  payload.frozen = true;
  EXPECT_EQ(storage(computing_in(DType::kBF16), payload), DType::kF8E4M3);
  EXPECT_EQ(compute(computing_in(DType::kBF16), payload), DType::kF8E4M3);
  DTypeQuestion narrow = from_file(DType::kBF16);
  narrow.frozen = true;
  narrow.presence = Presence::kEmpty;
  narrow.constructed = DType::kF16;
  EXPECT_EQ(refusal(computing_in(DType::kBF16), narrow).rule, "R28") << "it cannot hold what it should";
}

TEST(DTypeContract, R28_BuffersAreComputedInAsStored) {
  Policy policy = computing_in(DType::kBF16);
  DTypeQuestion buffer = from_file(DType::kF32);
  buffer.kind = Kind::kBuffer;
  EXPECT_EQ(compute(policy, buffer), DType::kF32);
  policy.dtype = DType::kF32;
  buffer.checkpoint = DType::kBF16;
  EXPECT_EQ(compute(policy, buffer), DType::kF32) << "nobody casts a buffer back";
}

TEST(DTypeContract, R29_DerivedValuesKeepTheirDeclaredDtype) {
  for (const Cast cast : {Cast::kPromote, Cast::kExact, Cast::kDestination}) {
    for (const Presence presence : {Presence::kMeta, Presence::kReal}) {
      Policy policy = request(DType::kBF16, cast);
      policy.compute_dtype = DType::kBF16;
      const DTypeQuestion inv_freq{.name = "inv_freq",
                                   .kind = Kind::kNonPersistentBuffer,
                                   .constructed = presence == Presence::kReal ? DType::kBF16 : DType::kF32,
                                   .presence = presence,
                                   .derived = true,
                                   .declared = DType::kF32,
                                   .frozen = true};
      EXPECT_EQ(storage(policy, inv_freq), DType::kF32);
      EXPECT_EQ(compute(policy, inv_freq), DType::kF32);
    }
  }
}

TEST(DTypeContract, R14_KeptValuesKeepTheirDtype) {
  const DTypeQuestion embed{.name = "embed", .constructed = DType::kBF16, .presence = Presence::kReal};
  EXPECT_EQ(storage(request(DType::kF32, Cast::kExact), embed), DType::kBF16);
  EXPECT_EQ(decide_dtype(request(DType::kF32), embed)->storage_rule, "R14");
}

TEST(DTypeContract, R23_InitialValuesFollowTheRequestWithoutNarrowing) {
  const DTypeQuestion lora{.name = "lora_A", .constructed = DType::kF32};
  const DTypeQuestion head{.name = "head", .constructed = DType::kBF16};
  EXPECT_EQ(storage(request({}), lora), DType::kF32);
  EXPECT_EQ(storage(request(DType::kBF16), lora), DType::kF32) << "PEFT made it F32 on purpose";
  EXPECT_EQ(storage(request(DType::kBF16), head), DType::kBF16);
  EXPECT_EQ(storage(request(DType::kF32), head), DType::kF32);
  EXPECT_EQ(storage(request(DType::kBF16, Cast::kExact), lora), DType::kBF16);
  const DTypeQuestion softcap{.name = "softcap", .kind = Kind::kNonPersistentBuffer, .constructed = DType::kF32};
  EXPECT_EQ(storage(request(DType::kBF16, Cast::kExact), softcap), DType::kF32) << "not a weight";
}

TEST(FixedMemory, WiderIsFineAndNarrowerIsAnError) {
  for (const Presence presence : {Presence::kReal, Presence::kEmpty}) {
    DTypeQuestion question = from_file(DType::kBF16);
    question.presence = presence;
    question.constructed = DType::kF32;
    EXPECT_EQ(storage(request({}), question), DType::kF32);
    question.constructed = DType::kF16;
    EXPECT_EQ(refusal(request({}), question).rule, "R22") << "BF16's range";
    question.checkpoint = DType::kF32;
    question.constructed = DType::kBF16;
    const Error error = refusal(request(DType::kF32), question);
    EXPECT_EQ(error.rule, "R23");
    EXPECT_EQ(error.expected, "F32, or wider");
    EXPECT_EQ(error.found, "BF16");
    EXPECT_THAT(error.remedy, HasSubstr("destination"));
    EXPECT_EQ(storage(request(DType::kF32, Cast::kDestination), question), DType::kBF16);
    EXPECT_EQ(storage(request(DType::kBF16, Cast::kExact), question), DType::kBF16) << "exact asks for no more";
  }
}

TEST(FixedMemory, R25_APinnedTensorNeedsFp32Memory) {
  DTypeQuestion question = from_file(DType::kBF16);
  question.presence = Presence::kEmpty;
  question.constructed = DType::kBF16;
  question.pinned = kStrict;
  EXPECT_EQ(refusal(request({}), question).rule, "R25");
  EXPECT_EQ(storage(request({}, Cast::kDestination), question), DType::kBF16);
}

TEST(FixedMemory, DestinationOnMetaIsPromote) {
  for (const DType checkpoint : {DType::kF32, DType::kBF16, DType::kI64}) {
    EXPECT_EQ(storage(request(DType::kF16, Cast::kDestination), from_file(checkpoint)),
              storage(request(DType::kF16, Cast::kPromote), from_file(checkpoint)));
  }
}

TEST(FixedMemory, IntegersMayWiden) {
  DTypeQuestion question = from_file(DType::kI32);
  question.presence = Presence::kReal;
  question.constructed = DType::kI64;
  EXPECT_EQ(storage(request({}), question), DType::kI64);
  std::swap(*question.checkpoint, question.constructed);
  refusal(request({}), question);
  refusal(request({}, Cast::kDestination), question);
}

TEST(DTypeContract, R31_OneDtypePerTieClass) {
  EXPECT_TRUE(check_tie_dtypes({}).empty());
  EXPECT_TRUE(check_tie_dtypes({{"embed", DType::kBF16, DType::kBF16}, {"head", DType::kBF16, DType::kBF16}}).empty());
  const Errors errors = check_tie_dtypes({{"embed", DType::kBF16, DType::kBF16}, {"head", DType::kF32, DType::kBF16}});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().rule, "R31");
  EXPECT_THAT(errors.front().found, HasSubstr("\"embed\" BF16/BF16"));
  EXPECT_THAT(errors.front().found, HasSubstr("\"head\" F32/BF16"));
  EXPECT_FALSE(check_tie_dtypes({{"a", DType::kF32, DType::kF32}, {"b", DType::kF32, DType::kBF16}}).empty());
}

TEST(DTypeContract, R32_TheRequestReachesEverySubtree) {
  Policy policy = request(DType::kF32);
  for (const char* name : {"text.w", "vision.w", "audio.a.b.c.w", "w"})
    EXPECT_EQ(requested_dtype(policy, name), DType::kF32);
  policy.subtree_dtypes = {{"vision", DType::kF16}, {"vision.head", DType::kF64}, {"vis", DType::kBF16}};
  EXPECT_EQ(requested_dtype(policy, "vision.w"), DType::kF16);
  EXPECT_EQ(requested_dtype(policy, "vision.head.w"), DType::kF64) << "the longest prefix";
  EXPECT_EQ(requested_dtype(policy, "vision.header.w"), DType::kF16);
  EXPECT_EQ(requested_dtype(policy, "text.w"), DType::kF32);
  std::reverse(policy.subtree_dtypes.begin(), policy.subtree_dtypes.end());
  EXPECT_EQ(requested_dtype(policy, "vision.head.w"), DType::kF64) << "in any order";
  const DTypeQuestion question{.name = "vision.head.w", .checkpoint = DType::kBF16};
  EXPECT_EQ(storage(policy, question), DType::kF64);
}

}  // namespace
}  // namespace lading::policy
