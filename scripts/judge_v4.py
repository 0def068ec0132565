"""Whole steps of DeepSeek-V4-Flash by the network and composed with its kernels fitted anew: PINN_WHOLE_STEPS=FILE python scripts/judge_v4.py."""
import os,sys,numpy as np,pandas as pd
from dataclasses import replace
from pathlib import Path
from pinn.coefficients.trained_network import load_checkpoint
from pinn.coefficients.surrogate import predict_coefficients
from pinn.kernels.surrogates import KernelSurrogates
from pinn.kernels.mixer_operators import MixerFits, read_all_mixers
from pinn.kernels.tables.table import SYSTEMS
from pinn.kernels.composition import compose, COMPOSED_PARTS
from pinn.laboratory import panel
from pinn.laboratory.engines import networks
from pinn.specs.gpu import load_gpu
from pinn.training.teacher import Teacher, saved_scalars, features_of_batches
from pinn.training.data.whole_steps import read_whole_steps
ck=Path('checkpoints/pinn.safetensors')
K=KernelSurrogates.load(Path('checkpoints/kernels/all'))
if '--stored' not in sys.argv:
    tabs,_=read_all_mixers({n:load_gpu(n) for n in SYSTEMS})
    gp={g.name:g for g in map(load_gpu,SYSTEMS)}
    fits=MixerFits.fit(tabs,gp,K.gemm.seconds)
    w=dict(K.mixers.weights)
    for k,v in fits.weights.items():
        if k in w and not np.allclose(w[k],v): print('differs',k)
    K=replace(K,mixers=fits)
steps,rep=read_whole_steps(Path(os.environ['PINN_WHOLE_STEPS']),panel.STEPS_GPU,panel.STEPS_GRAPH_TOKENS)
print(rep.refused)
v4=[s for s in steps if 'V4' in s.deployment.model.name]
net,_=networks(ck)
T=Teacher(K,saved_scalars(net.metadata['scalars'] if hasattr(net,'metadata') else load_checkpoint(ck).metadata['scalars']))
nb=predict_coefficients(net,[s.deployment for s in v4]).beta
tb=T.betas([s.deployment for s in v4])
rows=[]
for s,b1,b2 in zip(v4,nb,tb):
    a=panel.step_rows(s,b1); c=panel.step_rows(s,b2)
    parts=compose(K,s.deployment,s.batches); f=features_of_batches([s.deployment],[s.batches])[0]
    e=T.scalars.step_seconds(parts,f)
    d=pd.DataFrame(dict(run=s.run,tp=s.deployment.recipe.tensor_parallel_size,ep=s.deployment.recipe.expert_parallel_size,dp=s.deployment.recipe.data_parallel_size,metric=a.metric,n=s.count,dec=s.batches.decode_requests,ctx=s.batches.decode_context,pre=s.batches.prefill_requests,tok=s.batches.prefill_tokens,cached=s.batches.prefill_cached,ms=s.seconds*1e3,network=a.predicted_s*1e3,betas=c.predicted_s*1e3,composed=e*1e3))
    for i,n in enumerate(COMPOSED_PARTS): d['p_'+n]=parts[:,i]*1e3
    d['over']=(f@T.scalars.overheads)*1e3
    rows.append(d)
r=pd.concat(rows)
def show(g):
    o={'kinds':len(g),'steps':g.n.sum()}
    for m in('network','betas','composed'):
        x=100*(g[m]/g.ms-1); o[m]=f'{x.abs().median():.1f} / {x.abs().mean():.1f} ({x.median():+.1f})'
    return pd.Series(o)
print(r.groupby(['tp','ep','dp','metric']).apply(show).to_string())
print('without TP1 dp1'); q=r[~((r.tp==1)&(r.dp==1))]; print(q.groupby('metric').apply(show).to_string())
