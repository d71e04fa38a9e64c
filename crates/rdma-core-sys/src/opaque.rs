//! Structures that functions of [`verbs_context`](crate::verbs_context) are given, and nobody here looks into: only pointers to them occur.

/// Structures of which the size is not known.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`struct ", stringify!($name), "`: not looked into.")]
            #[allow(non_camel_case_types)]
            #[derive(Debug)]
            #[repr(C)]
            pub struct $name {
                _data: [u8; 0],
                // Neither `Send`, `Sync` nor `Unpin`: what is there is C's business.
                _marker: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
            }
        )*
    };
}

opaque! {
    _compat_ibv_port_attr
    ibv_ah
    ibv_alloc_dm_attr
    ibv_counter_attach_attr
    ibv_counters
    ibv_counters_init_attr
    ibv_cq_ex
    ibv_cq_init_attr_ex
    ibv_dm
    ibv_flow
    ibv_flow_action
    ibv_flow_action_esp_attr
    ibv_flow_attr
    ibv_modify_cq_attr
    ibv_ops_wr
    ibv_parent_domain_init_attr
    ibv_qp_init_attr_ex
    ibv_qp_open_attr
    ibv_qp_rate_limit_attr
    ibv_rwq_ind_table
    ibv_rwq_ind_table_init_attr
    ibv_srq_init_attr_ex
    ibv_td
    ibv_td_init_attr
    ibv_values_ex
    ibv_wq
    ibv_wq_attr
    ibv_wq_init_attr
    ibv_xrcd
    ibv_xrcd_init_attr
    verbs_ex_private
}
