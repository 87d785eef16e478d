//! The feature gates that Kubernetes 1.36 knows, as kube-proxy takes them.
//!
//! One of them changes what is done here ([`EXTERNAL_IPS`]), three say which logging options may be
//! used and what is served. The others do nothing, and neither do gates that 1.36 does not know: a
//! cluster's list of gates, of whatever version, keeps no node from starting.

use std::collections::BTreeMap;

/// Gate that makes `spec.externalIPs` count.
pub const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// Gate that serves `/flagz`.
pub const FLAGZ: &str = "ComponentFlagz";

/// Gate that serves `/statusz`.
pub const STATUSZ: &str = "ComponentStatusz";

/// Gate that allows the logging options that are not settled upstream.
pub const LOGGING_ALPHA: &str = "LoggingAlphaOptions";

/// Values of the feature gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureGates {
    enabled: BTreeMap<&'static str, bool>,
    /// Gates that were set, and that Kubernetes 1.36 does not know.
    unknown: Vec<String>,
}

/// Gates that are alike.
struct Group {
    stage: Stage,
    default: bool,
    /// True if another value than the default is refused.
    locked: bool,
    names: &'static [&'static str],
}

/// Stage of a gate, which decides if `AllAlpha` or `AllBeta` sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    /// Settled, or to be removed.
    Other,
}

// === impl FeatureGates ===

impl FeatureGates {
    /// The gates with these set, the others as they are by default.
    ///
    /// # Errors
    /// The gates that are locked to another value, in kube-proxy's words.
    pub fn new(settings: &BTreeMap<String, bool>) -> Result<Self, Vec<String>> {
        let mut enabled = BTreeMap::new();
        for group in &GROUPS {
            let of_stage = match group.stage {
                Stage::Alpha => settings.get("AllAlpha"),
                Stage::Beta => settings.get("AllBeta"),
                Stage::Other => None,
            };
            let value = of_stage.copied().filter(|_| !group.locked).unwrap_or(group.default);
            enabled.extend(group.names.iter().map(|name| (*name, value)));
        }
        let (mut problems, mut unknown) = (Vec::new(), Vec::new());
        for (name, value) in settings {
            if name == "AllAlpha" || name == "AllBeta" {
                continue;
            }
            let Some((name, group)) = find(name) else {
                unknown.push(name.clone());
                continue;
            };
            if group.locked && *value != group.default {
                problems.push(format!(
                    "cannot set feature gate {name} to {value}, feature is locked to {}",
                    group.default
                ));
            }
            enabled.insert(name, *value);
        }
        if problems.is_empty() { Ok(Self { enabled, unknown }) } else { Err(problems) }
    }

    /// True if a gate is open. A gate that does not exist is not.
    #[must_use]
    pub fn is_enabled(&self, name: &str) -> bool {
        self.enabled.get(name).copied().unwrap_or(false)
    }

    /// A warning for each gate that was set and that Kubernetes 1.36 does not know.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.unknown.iter().map(|name| warning(name))
    }

    /// Stage of a gate in the words of Kubernetes' metrics: ALPHA, BETA, or nothing once it is settled.
    #[must_use]
    pub fn stage(name: &str) -> &'static str {
        match find(name).map(|(_, group)| group.stage) {
            Some(Stage::Alpha) => "ALPHA",
            Some(Stage::Beta) => "BETA",
            Some(Stage::Other) | None => "",
        }
    }

    /// All gates in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.enabled.iter().map(|(name, enabled)| (*name, *enabled))
    }
}

impl Default for FeatureGates {
    fn default() -> Self {
        let enabled = GROUPS.iter().flat_map(|g| g.names.iter().map(|name| (*name, g.default)));
        Self { enabled: enabled.collect(), unknown: Vec::new() }
    }
}

fn find(name: &str) -> Option<(&'static str, &'static Group)> {
    GROUPS.iter().find_map(|group| {
        group.names.iter().find(|known| **known == name).map(|known| (*known, group))
    })
}

/// kube-proxy ends where it does not know a gate. Here that would be each gate that is newer than
/// the list below or older than its oldest.
fn warning(name: &str) -> String {
    let all = GROUPS.iter().flat_map(|group| group.names).copied();
    match super::nearest(name, all) {
        Some(near) => {
            format!(
                "featureGates.{name} has no effect: Kubernetes 1.36 has no such gate; is {near} meant?"
            )
        }
        None => format!("featureGates.{name} has no effect: Kubernetes 1.36 has no such gate"),
    }
}

/// As of Kubernetes 1.36 (test/compatibility_lifecycle/reference/versioned_feature_list.yaml, and
/// client-go's features/known_features.go).
const GROUPS: [Group; 7] = [
    Group {
        stage: Stage::Alpha,
        default: false,
        locked: false,
        names: &[
            "APIServingWithRoutine",
            "AllowUnsafeMalformedObjectDeletion",
            "CBORServingAndStorage",
            "CPUManagerPolicyAlphaOptions",
            "CRIListStreaming",
            "CSIVolumeHealth",
            "ClientsAllowCBOR",
            "ClientsPreferCBOR",
            "CloudControllerManagerWatchBasedRoutesReconciliation",
            "CloudControllerManagerWebhook",
            "ContainerStopSignals",
            "ControllerManagerReleaseLeaderElectionLockOnExit",
            "CrossNamespaceVolumeDataSource",
            "DRAListTypeAttributes",
            "DRANodeAllocatableResources",
            "DRAResourcePoolStatus",
            "DRAWorkloadResourceClaims",
            "EventedPLEG",
            "GangScheduling",
            "GenericWorkload",
            "HPAScaleToZero",
            "ImageVolumeWithDigest",
            "InPlacePodVerticalScalingExclusiveCPUs",
            "InPlacePodVerticalScalingExclusiveMemory",
            "KubeletInUserNamespace",
            "LoggingAlphaOptions",
            "ManifestBasedAdmissionControlConfig",
            "MemoryQoS",
            "MutablePVNodeAffinity",
            "NativeHistograms",
            "PersistentVolumeClaimUnusedSinceTime",
            "PodAndContainerStatsFromCRI",
            "PodLevelResourceManagers",
            "PodLogsQuerySplitStreams",
            "PodsAPI",
            "QOSReserved",
            "ReduceDefaultCrashLoopBackOffDecay",
            "RuntimeClassInImageCriAPI",
            "ShardedListAndWatch",
            "StorageCapacityScoring",
            "StorageVersionAPI",
            "TaintTolerationComparisonOperators",
            "TopologyAwareWorkloadScheduling",
            "TopologyManagerPolicyAlphaOptions",
            "UserNamespacesHostNetworkSupport",
            "VolumeLimitScaling",
            "WindowsCPUAndMemoryAffinity",
            "WorkloadAwarePreemption",
            "WorkloadWithJob",
        ],
    },
    Group {
        stage: Stage::Beta,
        default: false,
        locked: false,
        names: &[
            "ClusterTrustBundle",
            "ClusterTrustBundleProjection",
            "ConcurrentWatchObjectDecode",
            "CoordinatedLeaderElection",
            "DRADeviceTaintRules",
            "LocalStorageCapacityIsolationFSQuotaMonitoring",
            "MaxUnavailableStatefulSet",
            "PodCertificateRequest",
            "SELinuxMount",
            "SchedulerAsyncAPICalls",
            "StorageVersionMigrator",
        ],
    },
    Group {
        stage: Stage::Beta,
        default: true,
        locked: false,
        names: &[
            "APIResponseCompression",
            "APIServerIdentity",
            "AllowParsingUserUIDFromCertAuth",
            "AtomicFIFO",
            "AuthorizePodWebsocketUpgradeCreatePermission",
            "CPUManagerPolicyBetaOptions",
            "CRDObservedGenerationTracking",
            "ClearingNominatedNodeNameAfterBinding",
            "ClientsAllowCARotation",
            "ClientsAllowTLSCacheGC",
            "ComponentFlagz",
            "ComponentStatusz",
            "ConstrainedImpersonation",
            "ContainerCheckpoint",
            "ContainerRestartRules",
            "ContextualLogging",
            "DRAConsumableCapacity",
            "DRADeviceBindingConditions",
            "DRADeviceTaints",
            "DRAExtendedResource",
            "DRAPartitionableDevices",
            "DRAResourceClaimDeviceStatus",
            "DRAResourceClaimGranularStatusAuthorization",
            "DRASchedulerFilterTimeout",
            "DeclarativeValidationBeta",
            "DeploymentReplicaSetTerminatingReplicas",
            "DetectCacheInconsistency",
            "EnvFiles",
            "ExtendWebSocketsToKubelet",
            "GracefulNodeShutdown",
            "GracefulNodeShutdownBasedOnPodPriority",
            "HPAConfigurableTolerance",
            "HostnameOverride",
            "InOrderInformersBatchProcess",
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "KubeletCrashLoopBackOffMax",
            "KubeletEnsureSecretPulledImages",
            "KubeletSeparateDiskGC",
            "KubeletServiceAccountTokenForCredentialProviders",
            "ListFromCacheSnapshot",
            "LoggingBetaOptions",
            "MatchLabelKeysInPodTopologySpread",
            "MatchLabelKeysInPodTopologySpreadSelectorMerge",
            "MutablePodResourcesForSuspendedJobs",
            "MutableSchedulingDirectivesForSuspendedJobs",
            "NodeDeclaredFeatures",
            "NominatedNodeNameForExpectation",
            "OpenAPIEnums",
            "OpportunisticBatching",
            "PLEGOnDemandRelist",
            "PodDeletionCost",
            "PodLevelResources",
            "PodReadyToStartContainersCondition",
            "PodTopologyLabelsAdmission",
            "PortForwardWebsockets",
            "PreventStaticPodAPIReferences",
            "RelaxedServiceNameValidation",
            "ReloadKubeletClientCAFile",
            "ReloadKubeletServerCertificateFile",
            "RemoteRequestHeaderUID",
            "ResourceHealthStatus",
            "ResourceHealthStatusMessage",
            "RestartAllContainersOnContainerExits",
            "RotateKubeletServerCertificate",
            "SchedulerAsyncPreemption",
            "SchedulerPopFromBackoffQ",
            "ServiceAccountNodeAudienceRestriction",
            "SizeBasedListCostEstimate",
            "StaleControllerConsistencyDaemonSet",
            "StaleControllerConsistencyJob",
            "StaleControllerConsistencyReplicaSet",
            "StaleControllerConsistencyStatefulSet",
            "StatefulSetSemanticRevisionComparison",
            "StorageVersionHash",
            "StrictIPCIDRValidation",
            "StructuredAuthenticationConfigurationEgressSelector",
            "StructuredAuthenticationConfigurationJWKSMetrics",
            "TokenRequestServiceAccountUIDValidation",
            "TopologyManagerPolicyBetaOptions",
            "TranslateStreamCloseWebsocketRequests",
            "UnauthenticatedHTTP2DOSMitigation",
            "UnknownVersionInteroperabilityProxy",
            "UnlockWhileProcessingFIFO",
            "WatchCacheInitializationPostStartHook",
            "WatchList",
            "WatchListClient",
            "WindowsGracefulNodeShutdown",
        ],
    },
    Group {
        stage: Stage::Other,
        default: false,
        locked: false,
        names: &[
            "AllowDNSOnlyNodeCSR",
            "AllowInsecureKubeletCertificateSigningRequests",
            "ChangeContainerStatusOnKubeletRestart",
            "DeclarativeValidationTakeover",
            "KMSv1",
            "KubeletRegistrationGetOnExistsOnly",
            "WindowsHostNetwork",
        ],
    },
    Group {
        stage: Stage::Other,
        default: false,
        locked: true,
        names: &[
            "AllowOverwriteTerminationGracePeriodSeconds",
            "GitRepoVolumeDriver",
            "SeparateCacheWatchRPC",
        ],
    },
    Group {
        stage: Stage::Other,
        default: true,
        locked: false,
        names: &[
            "AllowServiceExternalIPs",
            "CPUCFSQuotaPeriod",
            "DRAPrioritizedList",
            "DisableCPUQuotaWithExclusiveCPUs",
            "InformerResourceVersion",
            "KubeletPodResourcesListUseActivePods",
            "MutatingAdmissionPolicy",
            "ServiceCIDRStatusFieldWiping",
            "StorageNamespaceIndex",
        ],
    },
    Group {
        stage: Stage::Other,
        default: true,
        locked: true,
        names: &[
            "APIServerTracing",
            "AggregatedDiscoveryRemoveBetaType",
            "AnonymousAuthConfigurableEndpoints",
            "AnyVolumeDataSource",
            "AuthorizeNodeWithSelectors",
            "AuthorizeWithSelectors",
            "BtreeWatchCache",
            "CPUManagerPolicyOptions",
            "CRDValidationRatcheting",
            "CSIServiceAccountTokenSecrets",
            "ConsistentListFromCache",
            "CustomResourceFieldSelectors",
            "DRAAdminAccess",
            "DeclarativeValidation",
            "DisableAllocatorDualWrite",
            "DisableNodeKubeProxyVersion",
            "DynamicResourceAllocation",
            "ExecProbeTimeout",
            "ExternalServiceAccountTokenSigner",
            "ImageMaximumGCAge",
            "ImageVolume",
            "InOrderInformers",
            "InPlacePodVerticalScaling",
            "JobBackoffLimitPerIndex",
            "JobManagedBy",
            "JobPodReplacementPolicy",
            "JobSuccessPolicy",
            "KubeletCgroupDriverFromCRI",
            "KubeletFineGrainedAuthz",
            "KubeletPSI",
            "KubeletPodResourcesDynamicResources",
            "KubeletPodResourcesGet",
            "KubeletTracing",
            "LogarithmicScaleDown",
            "MatchLabelKeysInPodAffinity",
            "MultiCIDRServiceAllocator",
            "MutableCSINodeAllocatableCount",
            "NFTablesProxyMode",
            "NodeInclusionPolicyInPodTopologySpread",
            "NodeLogQuery",
            "NodeSwap",
            "OrderedNamespaceDeletion",
            "PodLifecycleSleepAction",
            "PodLifecycleSleepActionAllowZero",
            "PodObservedGenerationTracking",
            "PodSchedulingReadiness",
            "PreferSameTrafficDistribution",
            "ProcMountType",
            "RecoverVolumeExpansionFailure",
            "RecursiveReadOnlyMounts",
            "RelaxedDNSSearchValidation",
            "RelaxedEnvironmentVariableValidation",
            "ResilientWatchCacheInitialization",
            "RetryGenerateName",
            "SELinuxChangePolicy",
            "SELinuxMountReadWriteOncePod",
            "SchedulerQueueingHints",
            "SeparateTaintEvictionController",
            "ServiceAccountTokenJTI",
            "ServiceAccountTokenNodeBinding",
            "ServiceAccountTokenNodeBindingValidation",
            "ServiceAccountTokenPodNodeInfo",
            "SidecarContainers",
            "StreamingCollectionEncodingToJSON",
            "StreamingCollectionEncodingToProtobuf",
            "StructuredAuthenticationConfiguration",
            "SupplementalGroupsPolicy",
            "SystemdWatchdog",
            "TopologyManagerPolicyOptions",
            "UserNamespacesSupport",
            "VolumeAttributesClass",
            "WinDSR",
            "WinOverlay",
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(settings: &[(&str, bool)]) -> Result<FeatureGates, Vec<String>> {
        FeatureGates::new(&settings.iter().map(|(name, on)| ((*name).into(), *on)).collect())
    }

    #[test]
    fn every_gate_has_one_name() {
        let n_names: usize = GROUPS.iter().map(|group| group.names.len()).sum();
        assert_eq!(FeatureGates::default().iter().count(), n_names);
        assert_eq!(gates(&[]), Ok(FeatureGates::default()));
        for name in [EXTERNAL_IPS, FLAGZ, STATUSZ] {
            assert!(FeatureGates::default().is_enabled(name), "{name}");
        }
        assert!(!FeatureGates::default().is_enabled(LOGGING_ALPHA));
    }

    #[test]
    fn gates_are_set_one_by_one_or_by_stage() {
        assert!(!gates(&[(EXTERNAL_IPS, false)]).unwrap().is_enabled(EXTERNAL_IPS));
        assert!(gates(&[("AllAlpha", true)]).unwrap().is_enabled(LOGGING_ALPHA));
        let but_one = gates(&[("AllAlpha", true), (LOGGING_ALPHA, false)]).unwrap();
        assert!(!but_one.is_enabled(LOGGING_ALPHA) && but_one.is_enabled("NativeHistograms"));
        assert!(!gates(&[("AllBeta", false)]).unwrap().is_enabled(FLAGZ));
    }

    #[test]
    fn locked_gates_are_refused_in_kube_proxys_words() {
        assert!(gates(&[("MultiCIDRServiceAllocator", true)]).is_ok());
        assert_eq!(
            gates(&[("MultiCIDRServiceAllocator", false)]).unwrap_err(),
            ["cannot set feature gate MultiCIDRServiceAllocator to false, feature is locked to \
              true"]
        );
    }

    #[test]
    fn gates_of_other_versions_are_told_and_do_nothing() {
        let set = [("KubeProxyIPVS", true), ("TopologyAwareHints", false)];
        let gates = gates(&[set[0], set[1], ("ComponentFlags", true), (FLAGZ, false)]).unwrap();
        assert!(!gates.is_enabled(FLAGZ));
        assert!(!gates.is_enabled("KubeProxyIPVS"));
        assert_eq!(gates.iter().count(), FeatureGates::default().iter().count());
        let warnings: Vec<String> = gates.warnings().collect();
        assert_eq!(
            warnings,
            [
                "featureGates.ComponentFlags has no effect: Kubernetes 1.36 has no such gate; is \
                 ComponentFlagz meant?",
                "featureGates.KubeProxyIPVS has no effect: Kubernetes 1.36 has no such gate",
                "featureGates.TopologyAwareHints has no effect: Kubernetes 1.36 has no such gate",
            ]
        );
    }
}
