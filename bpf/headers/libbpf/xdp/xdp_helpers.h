/* Names of libxdp's header of this name: its dispatcher's settings, of which probedeck has no need.
 */
#pragma once

#define XDP_METADATA_SECTION "xdp_metadata"
#define XDP_DISPATCHER_VERSION 2
#define XDP_DEFAULT_RUN_PRIO 50
#define XDP_DEFAULT_CHAIN_CALL_ACTIONS (1 << XDP_PASS)
#define XDP_RUN_CONFIG(function) _XDP_RUN_CONFIG(function)
#define _XDP_RUN_CONFIG(function) _##function SEC(".xdp_run_config")
